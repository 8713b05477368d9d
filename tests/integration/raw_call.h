// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// System calls of a layer below the library, which has the names of libc itself.
#ifndef RAW_CALL_H
#define RAW_CALL_H

#include <errno.h>
#include <stdarg.h>

// Also before libc is ready.
static inline long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// Of a function like syscall(): all six, whether the caller gave them or not.
#define RAW_ARGUMENTS(a, number)                                                                   \
    do {                                                                                           \
        va_list list;                                                                              \
        va_start(list, number);                                                                    \
        for (int i = 0; i < 6; i++)                                                                \
            (a)[i] = va_arg(list, long);                                                           \
        va_end(list);                                                                              \
    } while (0)

static inline long done(long result) {
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}

#endif

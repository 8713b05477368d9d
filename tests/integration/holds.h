// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Programs whose threads are held by a thread that they do not know (holder.c).
#ifndef PMALLOC_TESTS_HOLDS_H
#define PMALLOC_TESTS_HOLDS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            int error = errno;                                                                     \
            fprintf(stderr, "%s:%d: %s failed, errno %d (%s)\n", __FILE__, __LINE__, #condition,   \
                    error, strerror(error));                                                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// What the library that holds the threads tells; absent without it.
extern _Atomic unsigned holder_held __attribute__((weak));
extern void (*holder_check)(void) __attribute__((weak));

#endif

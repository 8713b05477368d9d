// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that defines a function of its own under a name of libc's (the linker's --defsym), for
// test_own_names.py. It prints "ok" if nobody else has called it. It calls no name of libc's but
// malloc and free, which are never the program's here.
#include <stddef.h>
#include <sys/syscall.h>

void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *p, size_t size);
void free(void *p);

static volatile long called;
long own_function(void);
long own_function(void) {
    called++;
    return -7;
}

static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

char *kept;

int main(void) {
    for (int i = 0; i < 2000; i++) {
        char *p = malloc((size_t)(i * 37 % 40000) + 10);
        p[0] = 1;
        free(p);
    }
    kept = calloc(1, 100);
    for (int i = 0; i < 20; i++) {
        char *p = realloc(malloc(1 << 20), 3 << 20);
        p[i] = 1;
        free(i % 2 ? p : NULL);
    }
    long some_ms[2] = {0, 15000000};
    system_call(SYS_nanosleep, (long)some_ms, 0, 0);
    const char *what = called ? "WRONG" : "ok";
    system_call(SYS_write, 1, (long)what, called ? 5 : 2);
    return 0;
}

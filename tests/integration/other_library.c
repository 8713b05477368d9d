// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Objects that are loaded for themselves alone, each with libraries of its own.
//
//   other_library MODULE...     loads each by RTLD_LOCAL, then calls and prints their whose()
//
// With LIBRARY defined it is a library with a lock of libgomp's name and a call of liburing's; with
// MODULE defined, a module that uses both.
#if defined LIBRARY

int omp_test_lock(void *lock);
int omp_test_lock(void *lock) {
    (void)lock;
    return LIBRARY;
}
int io_uring_submit(void *ring);
int io_uring_submit(void *ring) {
    (void)ring;
    return 10 * LIBRARY;
}

#elif defined MODULE

int omp_test_lock(void *lock);
int io_uring_submit(void *ring);
int whose(void);
int whose(void) {
    int word;
    return omp_test_lock(&word) + io_uring_submit(&word);
}

#else

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int (*whose[8])(void);
    for (int i = 1; i < argc; i++) {
        void *module = dlopen(argv[i], RTLD_LAZY | RTLD_LOCAL);
        if (!module || !(*(void **)&whose[i - 1] = dlsym(module, "whose"))) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    for (int round = 0; round < 2; round++)
        for (int i = 1; i < argc; i++)
            printf("%d\n", whose[i - 1]());
    return 0;
}

#endif

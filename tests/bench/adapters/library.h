// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// For adapters of allocators that the user has built: BENCH_LIBRARY is the shared object, and its
// functions are found by name. So an adapter is built where the allocator is not.
#ifndef BENCH_LIBRARY_H
#define BENCH_LIBRARY_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int bench_setup(const char *pool);
int bench_reopen(const char *pool);
void *bench_root(void);
void bench_link(void **at, void *to);
void *bench_linked(void **at);
void *bench_malloc(size_t size);
void bench_free(void *p);

enum { BENCH_ROOT = 64 }; // bytes of the block that recovery finds by itself

// Puts the function of that name into *function. Returns 0, or -1 after a message.
static inline int bench_function(void *function, const char *name) {
    const char *path = getenv("BENCH_LIBRARY");
    void *library = dlopen(path ? path : "", RTLD_NOW | RTLD_LOCAL);
    *(void **)function = path && library ? dlsym(library, name) : NULL;
    if (*(void **)function)
        return 0;
    fprintf(stderr, "BENCH_LIBRARY: %s\n", path ? dlerror() : "is not set");
    return -1;
}

// The most that a pool may grow to.
static inline size_t bench_pool_bytes(void) {
    const char *megabytes = getenv("BENCH_POOL_MB");
    return (size_t)(megabytes ? atol(megabytes) : 65536) << 20;
}

#endif

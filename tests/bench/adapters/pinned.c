// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pinned blocks of PMAlloc, which is preloaded, as the allocator of the benchmark programs: each
// block is durable on return, as with the papers' allocators of strong consistency.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#include "../../../preload/pmalloc.h"

int bench_setup(const char *pool);
void *bench_malloc(size_t size);
void bench_free(void *p);

static void *(*alloc)(size_t size, size_t align, unsigned flags);
static void (*release)(void *p);

int bench_setup(const char *pool) {
    (void)pool;
    *(void **)&alloc = dlsym(RTLD_DEFAULT, "pmalloc_alloc");
    *(void **)&release = dlsym(RTLD_DEFAULT, "free");
    if (!alloc)
        fprintf(stderr, "libpmalloc_preload.so is not preloaded\n");
    return alloc && release ? 0 : -1;
}

void *bench_malloc(size_t size) { return alloc(size, 0, PMALLOC_PINNED); }
void bench_free(void *p) { release(p); }

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Ralloc as the allocator of the benchmark programs. A thread that ends gives its cache back by
// itself.
#include <unistd.h>

#include "library.h"

void bench_teardown(void);

static int (*init)(const char *id, uint64_t size); // 1: the heap was there already
static void *(*allocate)(size_t size);
static void (*release)(void *p);

int bench_setup(const char *pool) {
    char id[4096];
    if (bench_function(&init, "RP_init") || bench_function(&allocate, "RP_malloc") ||
        bench_function(&release, "RP_free"))
        return -1;
    // An id is a path that begins in /dev/shm or /mnt/pmem, as Ralloc was built.
    snprintf(id, sizeof id, "../..%s", pool);
    return init(id, bench_pool_bytes());
}

void *bench_malloc(size_t size) { return allocate(size); }
void bench_free(void *p) { release(p); }

// What it does at exit reads all of the pool, which would be its peak of memory.
void bench_teardown(void) {
    fflush(NULL);
    _exit(0);
}

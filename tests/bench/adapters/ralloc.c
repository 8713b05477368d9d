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
static int (*recover)(void); // 1: it was needed
static void *(*get_root)(uint64_t i), *(*set_root)(void *p, uint64_t i);

// What init() returns, or -1.
static int open_pool(const char *pool) {
    char id[4096];
    if (bench_function(&init, "RP_init") || bench_function(&allocate, "RP_malloc") ||
        bench_function(&release, "RP_free") || bench_function(&recover, "RP_recover") ||
        bench_function(&set_root, "RP_set_root") ||
        bench_function(&get_root, "_Z13RP_get_root_cm")) // for C, and with a name of C++
        return -1;
    // An id is a path that begins in /dev/shm or /mnt/pmem, as Ralloc was built.
    snprintf(id, sizeof id, "../..%s", pool);
    return init(id, bench_pool_bytes());
}

// recover() begins a new heap, too: it becomes one that a kill leaves to be recovered.
int bench_setup(const char *pool) {
    int old = open_pool(pool);
    if (old == 0)
        recover();
    return old;
}

// A root that has been asked for is one of words that may be pointers.
int bench_reopen(const char *pool) {
    if (open_pool(pool) != 1)
        return -1;
    get_root(0);
    return recover() == 1 ? 0 : -1;
}

void *bench_root(void) {
    void *root = get_root(0);
    if (!root && (root = allocate(BENCH_ROOT)))
        set_root(root, 0);
    return root;
}

// Its pointers are distances, which a collection knows by their last 16 bits.
enum { FORWARDS = 0x52b0, BACKWARDS = 0x52b1, SHIFT = 16 };

void bench_link(void **at, void *to) {
    uintptr_t here = (uintptr_t)at, there = to ? (uintptr_t)to : here;
    *(uintptr_t *)at =
        there >= here ? (there - here) << SHIFT | FORWARDS : (here - there) << SHIFT | BACKWARDS;
}

void *bench_linked(void **at) {
    uintptr_t word = *(uintptr_t *)at, here = (uintptr_t)at, far = word >> SHIFT;
    return !far ? NULL : (void *)(word & 1 ? here - far : here + far);
}

void *bench_malloc(size_t size) { return allocate(size); }
void bench_free(void *p) { release(p); }

// What it does at exit reads all of the pool, which would be its peak of memory.
void bench_teardown(void) {
    fflush(NULL);
    _exit(0);
}

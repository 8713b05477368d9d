// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// nvm_malloc as the allocator of the benchmark programs: each block is reserved and activated, and
// no pointer on media is set with it. The pool is a directory.
#include <sys/stat.h>

#include "library.h"

// It leaves no room for the header of a large block whose length is a multiple of a page.
enum { SMALL = 1984, HEADER = 64 };

static void *(*initialize)(const char *directory, int recover);
static void *(*reserve)(uint64_t size);
static void (*activate)(void *p, void **link, void *target, void **other, void *other_target);
static void (*release)(void *p, void **link, void *target, void **other, void *other_target);

static void *(*reserve_id)(const char *id, uint64_t size), *(*get_id)(const char *id);
static void (*activate_id)(const char *id);
static char *base;

static int open_pool(const char *pool, int recover) {
    if (bench_function(&initialize, "nvm_initialize") || bench_function(&reserve, "nvm_reserve") ||
        bench_function(&activate, "nvm_activate") || bench_function(&release, "nvm_free") ||
        bench_function(&reserve_id, "nvm_reserve_id") || bench_function(&get_id, "nvm_get_id") ||
        bench_function(&activate_id, "nvm_activate_id"))
        return -1;
    if (!recover && mkdir(pool, 0700) != 0)
        return -1;
    base = initialize(pool, recover);
    return base ? 0 : -1;
}

int bench_setup(const char *pool) { return open_pool(pool, 0); }
int bench_reopen(const char *pool) { return open_pool(pool, 1); }

void *bench_root(void) {
    void *root = get_id("root");
    if (!root && (root = reserve_id("root", BENCH_ROOT)))
        activate_id("root");
    return root;
}

// The pool lies at another address each time.
void bench_link(void **at, void *to) {
    *(uintptr_t *)at = to ? (uintptr_t)to - (uintptr_t)base : 0;
}
void *bench_linked(void **at) { return *at ? base + *(uintptr_t *)at : NULL; }

void *bench_malloc(size_t size) {
    void *p = reserve(size > SMALL ? size + HEADER : size);
    if (p)
        activate(p, NULL, NULL, NULL, NULL);
    return p;
}

void bench_free(void *p) {
    if (p)
        release(p, NULL, NULL, NULL, NULL);
}

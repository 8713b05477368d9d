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

int bench_setup(const char *pool) {
    if (bench_function(&initialize, "nvm_initialize") || bench_function(&reserve, "nvm_reserve") ||
        bench_function(&activate, "nvm_activate") || bench_function(&release, "nvm_free"))
        return -1;
    return mkdir(pool, 0700) == 0 && initialize(pool, 0) ? 0 : -1;
}

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

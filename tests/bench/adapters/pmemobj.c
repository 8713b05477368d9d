// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libpmemobj as the allocator of the benchmark programs: atomic allocations in a pool in BENCH_POOL. It wants a place
// in the pool for each new address, as its interface does; one a thread, in the root object.
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PLACES = 1024 };

int bench_setup(const char *pool);
void *bench_malloc(size_t size);
void bench_free(void *p);
void bench_teardown(void);

struct root {
    struct {
        _Alignas(64) PMEMoid at;
    } places[PLACES];
};

static PMEMobjpool *pool;
static const char *pool_path;
static struct root *root;
static uint64_t pool_id;
static unsigned threads;
static __thread PMEMoid *place;

int bench_setup(const char *path) {
    const char *megabytes = getenv("BENCH_POOL_MB");
    size_t bytes = (megabytes ? strtoull(megabytes, NULL, 10) : 4096) << 20;
    unlink(path);
    pool = pmemobj_create(path, "bench", bytes, 0600);
    if (!pool) {
        fprintf(stderr, "pmemobj: %s: %s\n", path, pmemobj_errormsg());
        return -1;
    }
    pool_path = path;
    PMEMoid oid = pmemobj_root(pool, sizeof *root);
    root = pmemobj_direct(oid);
    pool_id = oid.pool_uuid_lo;
    return root ? 0 : -1;
}

void *bench_malloc(size_t size) {
    if (!place)
        place = &root->places[__atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) % PLACES].at;
    if (pmemobj_alloc(pool, place, size, 0, NULL, NULL) != 0)
        return NULL;
    return pmemobj_direct(*place);
}

void bench_free(void *p) {
    if (!p)
        return;
    PMEMoid oid = {pool_id, (uint64_t)((char *)p - (char *)pool)};
    pmemobj_free(&oid);
}

void bench_teardown(void) {
    pmemobj_close(pool);
    unlink(pool_path);
}

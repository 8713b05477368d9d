// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libpmemobj as the allocator of the benchmark programs: atomic allocations in a pool at
// BENCH_POOL. Its interface stores each new address in a place in the pool. Each thread has such a
// place, in the root object.
#include <dirent.h>
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 1024, ROOT = 64 };

int bench_setup(const char *pool);
int bench_reopen(const char *pool);
void *bench_root(void);
void bench_link(void **at, void *to);
void *bench_linked(void **at);
void *bench_malloc(size_t size);
void bench_free(void *p);
void bench_teardown(void);

struct root {
    struct {
        _Alignas(64) PMEMoid at;
    } places[PLACES];
    char kept[ROOT];
};

static PMEMobjpool *pool;
static const char *pool_path;
static char set_path[4096];
static struct root *root;
static uint64_t pool_id;
static unsigned threads;
static __thread PMEMoid *place;

// Makes a pool in a directory. It adds parts as it grows, so it takes only the memory that it
// needs, as other allocators do.
static int write_pool_set(const char *path) {
    const char *megabytes = getenv("BENCH_POOL_MB");
    snprintf(set_path, sizeof set_path, "%s.set", path);
    FILE *set = mkdir(path, 0700) == 0 ? fopen(set_path, "w") : NULL;
    if (!set)
        return -1;
    fprintf(set, "PMEMPOOLSET\nOPTION SINGLEHDR\n%sM %s\n", megabytes ? megabytes : "65536", path);
    return fclose(set);
}

// The pool has been made or opened.
static int use_pool(const char *path) {
    if (!pool) {
        fprintf(stderr, "pmemobj: %s: %s\n", set_path, pmemobj_errormsg());
        return -1;
    }
    pool_path = path;
    ssize_t granularity = 16 << 20;
    if (pmemobj_ctl_set(pool, "heap.size.granularity", &granularity) != 0)
        return -1;
    PMEMoid oid = pmemobj_root(pool, sizeof *root);
    root = pmemobj_direct(oid);
    pool_id = oid.pool_uuid_lo;
    return root ? 0 : -1;
}

int bench_setup(const char *path) {
    if (write_pool_set(path) != 0) {
        perror(path);
        return -1;
    }
    pool = pmemobj_create(set_path, "bench", 0, 0600);
    return use_pool(path);
}

int bench_reopen(const char *path) {
    snprintf(set_path, sizeof set_path, "%s.set", path);
    pool = pmemobj_open(set_path, "bench");
    return use_pool(path);
}

void *bench_root(void) { return root->kept; }

// The pool lies at another address each time.
void bench_link(void **at, void *to) {
    *(uintptr_t *)at = to ? (uintptr_t)to - (uintptr_t)pool : 0;
}
void *bench_linked(void **at) { return *at ? (char *)pool + *(uintptr_t *)at : NULL; }

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
    DIR *dir = opendir(pool_path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(pool_path);
    unlink(set_path);
}

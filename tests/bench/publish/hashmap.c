// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A hash map with a count, changed by publishes: each change is one node and two stores. Compiled
// with -DPMEMOBJ it does the same with the actions of libpmemobj. scripts/publish-bench runs both.
//
//   hashmap OPS [POOL]     prints nanoseconds for each insert, replacement and removal
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BUCKETS (1u << 17)

struct node;
#ifdef PMEMOBJ
#include <libpmemobj.h>
static PMEMobjpool *pool;
static char *base; // of the pool in memory
// A link is an offset in the pool: 8 bytes, which set_value can store.
static struct node *at(uint64_t link) { return link ? (struct node *)(void *)(base + link) : NULL; }
typedef struct pobj_action change;
#else
#include "preload/pmalloc.h"
static struct node *at(uint64_t link) { return (struct node *)(uintptr_t)link; }
typedef pmalloc_op change;
#endif

struct node {
    uint64_t next, key, value;
    uint64_t pad[3];
};
struct map {
    uint64_t count, pad[7];
    uint64_t bucket[BUCKETS];
};
static struct map *map;

#ifdef PMEMOBJ
static void open_map(const char *path) {
    pool = pmemobj_create(path, "hashmap", (size_t)2 << 30, 0600);
    if (!pool) {
        fprintf(stderr, "hashmap: %s\n", pmemobj_errormsg());
        exit(1);
    }
    base = (char *)pool;
    PMEMoid root = pmemobj_root(pool, sizeof *map);
    map = pmemobj_direct(root);
}
static struct node *reserve(change *c, uint64_t *link) {
    PMEMoid oid = pmemobj_reserve(pool, c, sizeof(struct node), 1);
    *link = oid.off;
    return pmemobj_direct(oid);
}
static void filled(const struct node *n) { pmemobj_flush(pool, n, sizeof *n); }
static void store(change *c, uint64_t *where, uint64_t value) {
    pmemobj_set_value(pool, c, where, value);
}
static void defer_free(change *c, uint64_t link) {
    pmemobj_defer_free(pool, (PMEMoid){pmemobj_oid(map).pool_uuid_lo, link}, c);
}
static int publish(change *c, unsigned n) { return pmemobj_publish(pool, c, n); }
#else
static void open_map(const char *path) {
    pmalloc_op op[2];
    (void)path;
    map = pmalloc_reserve(&op[0], sizeof *map, 0, PMALLOC_ZERO);
    if (!map || pmalloc_store_root(&op[1], 0, map) != 0 || pmalloc_publish(op, 2) != 0)
        exit(1);
}
static struct node *reserve(change *c, uint64_t *link) {
    struct node *n = pmalloc_reserve(c, sizeof *n, 0, PMALLOC_FLUSHED);
    *link = (uint64_t)(uintptr_t)n;
    return n;
}
static void filled(const struct node *n) { pmalloc_flush(n, sizeof *n); }
static void store(change *c, uint64_t *where, uint64_t value) { pmalloc_store(c, where, value); }
static void defer_free(change *c, uint64_t link) { pmalloc_defer_free(c, at(link)); }
static int publish(change *c, unsigned n) { return pmalloc_publish(c, n); }
#endif

static uint64_t mixed(uint64_t x) {
    x *= 0x9e3779b97f4a7c15ull;
    return (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull >> 20;
}

static uint64_t *place(uint64_t key) {
    uint64_t *link = &map->bucket[mixed(key) % BUCKETS];
    while (*link && at(*link)->key != key)
        link = &at(*link)->next;
    return link;
}

static void done(change *c, unsigned n) {
    if (publish(c, n) != 0) {
        fprintf(stderr, "hashmap: a publish failed\n");
        exit(1);
    }
}

static void insert(uint64_t key) {
    change c[3];
    uint64_t *where = place(key), link;
    struct node *n = reserve(&c[0], &link);
    *n = (struct node){.next = *where, .key = key, .value = key * 3};
    filled(n);
    store(&c[1], where, link);
    store(&c[2], &map->count, map->count + 1);
    done(c, 3);
}

static void replace(uint64_t key) {
    change c[4];
    uint64_t *where = place(key), link, old = *where;
    struct node *n = reserve(&c[0], &link);
    *n = *at(old);
    n->value++;
    filled(n);
    store(&c[1], where, link);
    store(&c[2], &map->count, map->count);
    defer_free(&c[3], old);
    done(c, 4);
}

static void take(uint64_t key) {
    change c[3];
    uint64_t *where = place(key), old = *where;
    store(&c[0], where, at(old)->next);
    store(&c[1], &map->count, map->count - 1);
    defer_free(&c[2], old);
    done(c, 3);
}

static double run(void (*step)(uint64_t key), uint64_t ops) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t key = 1; key <= ops; key++)
        step(key);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           (double)ops;
}

int main(int argc, char **argv) {
    uint64_t ops = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (!ops)
        return 2;
    open_map(argc > 2 ? argv[2] : NULL);
    double in = run(insert, ops), again = run(replace, ops);
    if (map->count != ops || at(*place(ops))->value != ops * 3 + 1)
        return 1;
    double out = run(take, ops);
    printf("%.1f %.1f %.1f\n", in, again, out);
    return map->count != 0;
}

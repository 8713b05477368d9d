// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A hash map that is changed by publishes alone, and no change of which is one store: its nodes
// hang in two chains (by bucket, and in the order of their age, linked both ways), and the map
// counts them and sums their keys.
//
//   structure check           checks all maps that there are
//   structure run [-t N]      checks them, says "ready", and changes them until it is killed
//   structure leave           checks them, changes them for a while, and ends
#include "preload/pmalloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 512
#define KEYS 4000
#define MAPS 4

struct node {
    uint64_t key, check;
    struct node *chain;           // of the bucket
    struct node *older, *younger; // of all
    char *text;                   // a block of its own, of some size
};

struct map {
    uint64_t count, sum, changes;
    struct node *oldest, *youngest;
    struct node *bucket[BUCKETS];
};

static void wrong(const char *what) {
    printf("wrong: %s\n", what);
    exit(1);
}

static uint64_t mixed(uint64_t x) { return (x + 1) * 0x9e3779b97f4a7c15ull; }

static struct node **place_of(struct map *m, uint64_t key) {
    struct node **at = &m->bucket[mixed(key) % BUCKETS];
    while (*at && (*at)->key != key)
        at = &(*at)->chain;
    return at;
}

// ---- changes ------------------------------------------------------------------------------------

struct change {
    pmalloc_op op[24];
    size_t n;
};

static void set(struct change *c, void *where, uint64_t value) {
    if (pmalloc_store(&c->op[c->n++], where, value) != 0)
        wrong("a store is refused");
}
static void point(struct change *c, void *where, const void *to) {
    set(c, where, (uint64_t)(uintptr_t)to);
}
static void *take(struct change *c, size_t size, unsigned flags) {
    void *p = pmalloc_reserve(&c->op[c->n++], size, 0, flags);
    if (!p)
        wrong("no memory");
    return p;
}
static void publish(struct change *c, struct map *m) {
    set(c, &m->changes, m->changes + 1);
    if (pmalloc_publish(c->op, c->n) != 0)
        wrong("a publish fails");
}

static char *new_text(struct change *c, uint64_t key, unsigned *seed) {
    size_t size = 24 + (size_t)rand_r(seed) % (rand_r(seed) % 64 ? 300 : 60000);
    char *text = take(c, size, PMALLOC_POINTER_FREE);
    memset(text, 'a' + (int)(key % 26), size);
    snprintf(text, 24, "%lu", (unsigned long)key);
    return text;
}

static void insert(struct map *m, uint64_t key, unsigned *seed) {
    struct change c = {.n = 0};
    struct node **at = place_of(m, key), *n = take(&c, sizeof *n, 0);
    *n = (struct node){.key = key, .check = mixed(key), .older = m->youngest};
    n->text = new_text(&c, key, seed);
    point(&c, at, n);
    if (m->youngest)
        point(&c, &m->youngest->younger, n);
    else
        point(&c, &m->oldest, n);
    point(&c, &m->youngest, n);
    set(&c, &m->count, m->count + 1);
    set(&c, &m->sum, m->sum + key);
    publish(&c, m);
}

static void drop(struct map *m, struct node **at) {
    struct change c = {.n = 0};
    struct node *n = *at;
    point(&c, at, n->chain);
    point(&c, n->older ? (void *)&n->older->younger : (void *)&m->oldest, n->younger);
    point(&c, n->younger ? (void *)&n->younger->older : (void *)&m->youngest, n->older);
    set(&c, &m->count, m->count - 1);
    set(&c, &m->sum, m->sum - n->key);
    pmalloc_defer_free(&c.op[c.n++], n->text);
    pmalloc_defer_free(&c.op[c.n++], n);
    publish(&c, m);
}

static void retext(struct map *m, struct node *n, unsigned *seed) {
    struct change c = {.n = 0};
    char *old = n->text;
    point(&c, &n->text, new_text(&c, n->key, seed));
    pmalloc_defer_free(&c.op[c.n++], old);
    publish(&c, m);
}

static void step(struct map *m, unsigned *seed) {
    uint64_t key = (uint64_t)rand_r(seed) % KEYS;
    struct node **at = place_of(m, key);
    if (!*at)
        insert(m, key, seed);
    else if (rand_r(seed) % 3)
        drop(m, at);
    else
        retext(m, *at, seed);
}

// ---- checks -------------------------------------------------------------------------------------

static void check_node(const struct node *n) {
    char said[24];
    snprintf(said, sizeof said, "%lu", (unsigned long)n->key);
    if (n->key >= KEYS || n->check != mixed(n->key) || strcmp(n->text, said) != 0)
        wrong("a node");
}

// Returns how many blocks the map has.
static uint64_t check_map(struct map *m) {
    uint64_t count = 0, sum = 0, aged = 0;
    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct node *n = m->bucket[b]; n; n = n->chain, count++) {
            check_node(n);
            sum += n->key;
            if (mixed(n->key) % BUCKETS != b)
                wrong("a node in another bucket");
        }
    const struct node *before = NULL;
    for (const struct node *n = m->oldest; n; before = n, n = n->younger, aged++)
        if (n->older != before || *place_of(m, n->key) != n)
            wrong("the order of age");
    if (before != m->youngest || count != m->count || aged != count || sum != m->sum)
        wrong("a count, a sum or an end");
    return 1 + 2 * count;
}

// ---- the program --------------------------------------------------------------------------------

static struct map *map_in(unsigned slot) {
    struct map *m = pmalloc_get_root(slot);
    if (m)
        return m;
    pmalloc_op op[2];
    m = pmalloc_reserve(&op[0], sizeof *m, 0, PMALLOC_ZERO);
    if (!m || pmalloc_store_root(&op[1], slot, m) != 0 || pmalloc_publish(op, 2) != 0)
        wrong("no map");
    return m;
}

static void *work(void *arg) {
    unsigned slot = (unsigned)(uintptr_t)arg, seed = slot + (unsigned)pmalloc_generation() * 8;
    struct map *m = map_in(slot);
    for (;;)
        step(m, &seed);
    return NULL;
}

static void leave(void) {
    unsigned seed = (unsigned)pmalloc_generation();
    for (unsigned i = 0; i < 3000; i++)
        step(map_in(i % MAPS), &seed);
}

int main(int argc, char **argv) {
    uint64_t blocks = 0, changes = 0;
    for (unsigned slot = 0; slot < MAPS; slot++) {
        struct map *m = pmalloc_get_root(slot);
        blocks += m ? check_map(m) : 0;
        changes += m ? m->changes : 0;
    }
    printf("ok %lu blocks %lu changes\n", (unsigned long)blocks, (unsigned long)changes);
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "leave") == 0)
        leave();
    if (argc < 2 || strcmp(argv[1], "run") != 0)
        return 0;
    uintptr_t threads = argc > 3 ? (uintptr_t)atoi(argv[3]) : 1;
    pthread_t thread;
    printf("ready\n");
    fflush(stdout);
    for (uintptr_t i = 1; i < threads && i < MAPS; i++)
        pthread_create(&thread, NULL, work, (void *)i);
    work(NULL);
}

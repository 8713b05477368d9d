// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A chained hash table for each shard. Now and then it moves to a table of another size and salt.
// The new table, with nodes of its own, is complete before one store replaces the old table. Then
// the old table is freed node by node. Both tables name the same payloads; after the store these
// belong to the new table.
#include "workload.h"

struct node {
    struct node *next;
    struct payload *payload;
    uint32_t key;
};

struct table {
    uint64_t salt;
    uint64_t mask; // buckets - 1
    struct node *bucket[];
};

struct state {
    struct table *table[SHARDS];
    struct model model[SHARDS];
};

struct state *hash_state;

static size_t table_size(uint64_t buckets) {
    return sizeof(struct table) + buckets * sizeof(struct node *);
}

static struct table *table_new(uint64_t buckets, uint64_t salt) {
    struct table *t = must(calloc(1, table_size(buckets)));
    t->salt = salt;
    t->mask = buckets - 1;
    return t;
}

static struct node **bucket(struct table *t, uint32_t key) {
    return &t->bucket[mix64(key ^ t->salt) & t->mask];
}

static void build(void) {
    struct state *state = must(calloc(1, sizeof *state));
    for (unsigned s = 0; s < SHARDS; s++)
        state->table[s] = table_new(64, s);
    PUBLISH(&hash_state, state);
}

static struct model *model(unsigned s) { return hash_state ? &hash_state->model[s] : NULL; }

static bool walk(unsigned s, struct census *c) {
    struct table *t = hash_state->table[s];
    if (s == 0)
        census_block(c, hash_state, sizeof *hash_state);
    if (t->mask >= KEYS || (t->mask & (t->mask + 1)))
        return census_fail(c, "shard %u: table mask %#llx", s, (unsigned long long)t->mask);
    census_block(c, t, table_size(t->mask + 1));
    for (uint64_t i = 0; i <= t->mask; i++)
        for (struct node *n = t->bucket[i]; n; n = n->next) {
            if (bucket(t, n->key) != &t->bucket[i])
                return census_fail(c, "shard %u: key %u in bucket %llu", s, n->key,
                                   (unsigned long long)i);
            census_block(c, n, sizeof *n);
            if (!census_entry(c, s, n->key, n->payload))
                return false;
        }
    return true;
}

static struct node **find(unsigned s, uint32_t key) {
    struct node **place = bucket(hash_state->table[s], key);
    while (*place && (*place)->key != key)
        place = &(*place)->next;
    return place;
}

static struct node *node_new(uint32_t key, struct payload *p, struct node *next) {
    struct node *n = must(malloc(sizeof *n));
    *n = (struct node){.next = next, .payload = p, .key = key};
    return n;
}

static struct payload *put(unsigned s, uint32_t key, struct payload *p) {
    struct node **place = find(s, key), *n = *place;
    if (n) {
        struct payload *old = n->payload;
        PUBLISH(&n->payload, p);
        return old;
    }
    PUBLISH(place, node_new(key, p, NULL));
    return NULL;
}

static struct payload *drop(unsigned s, uint32_t key) {
    struct node **place = find(s, key), *n = *place;
    if (!n)
        return NULL;
    struct payload *old = n->payload;
    PUBLISH(place, n->next);
    free(n);
    return old;
}

static void rehash(unsigned s, uint64_t random) {
    struct table *old = hash_state->table[s], *t = table_new(64ull << random % 7, random >> 8);
    for (uint64_t i = 0; i <= old->mask; i++)
        for (struct node *n = old->bucket[i]; n; n = n->next) {
            struct node **place = bucket(t, n->key);
            *place = node_new(n->key, n->payload, *place);
        }
    PUBLISH(&hash_state->table[s], t);
    for (uint64_t i = 0; i <= old->mask; i++)
        for (struct node *n = old->bucket[i], *next; n; n = next) {
            next = n->next;
            free(n);
        }
    free(old);
}

int main(int argc, char **argv) {
    static const struct structure hashset = {
        .name = "hashset",
        .build = build,
        .model = model,
        .walk = walk,
        .put = put,
        .drop = drop,
        .tend = rehash,
    };
    return workload_main(&hashset, argc, argv);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A skip list for each shard. Level 0 is the truth:
//
//     level 2   head ----------------------> 40 ------------------> end
//     level 1   head ------> 17 -----------> 40 ------> 58 -------> end
//     level 0   head -> 9 -> 17 -> 23 -----> 40 -> 51 -> 58 ------> end
//
// Invariant: at each instant every level holds a subset of the level below. So a node is linked
// from level 0 upward and unlinked from the top downward, by one store per level. A stop in between
// leaves a tower of less than its height, never a pointer to a freed node. The next start calls
// repair(), which completes the towers.
#include "workload.h"

enum { LEVELS = 12 };

struct node {
    struct payload *payload;
    uint32_t key;
    uint32_t height;
    struct node *next[];
};

struct state {
    struct node *head[SHARDS][LEVELS];
    struct model model[SHARDS];
};

struct state *skip_state;

static void build(void) {
    struct state *s = must(calloc(1, sizeof *s));
    PUBLISH(&skip_state, s);
}

static struct model *model(unsigned s) { return skip_state ? &skip_state->model[s] : NULL; }

static size_t node_size(uint32_t height) {
    return sizeof(struct node) + height * sizeof(struct node *);
}

static bool walk_upper(unsigned s, struct census *c, struct node *const *at) {
    for (unsigned level = 1; level < LEVELS; level++) {
        int64_t last = -1;
        for (struct node *n = skip_state->head[s][level]; n; n = n->next[level]) {
            if (n->key >= KEYS || at[n->key] != n || n->height <= level || n->key <= last)
                return census_fail(c, "shard %u: level %u: stray node %p", s, level, (void *)n);
            last = n->key;
        }
    }
    return true;
}

static bool walk(unsigned s, struct census *c) {
    struct node *at[KEYS] = {NULL};
    if (s == 0)
        census_block(c, skip_state, sizeof *skip_state);
    int64_t last = -1;
    for (struct node *n = skip_state->head[s][0]; n; n = n->next[0]) {
        if (n->key <= last || n->height < 1 || n->height > LEVELS)
            return census_fail(c, "shard %u: key %u of height %u after %lld", s, n->key, n->height,
                               (long long)last);
        last = n->key;
        census_block(c, n, node_size(n->height));
        if (!census_entry(c, s, n->key, n->payload))
            return false;
        at[n->key] = n;
    }
    return walk_upper(s, c, at);
}

// Fills place[level] with the address of the pointer to the first node whose key is not below
// `key`.
static struct node *find(unsigned s, uint32_t key, struct node **place[LEVELS]) {
    struct node **links = skip_state->head[s];
    for (unsigned level = LEVELS; level-- > 0;) {
        while (links[level] && links[level]->key < key)
            links = links[level]->next;
        place[level] = &links[level];
    }
    struct node *n = *place[0];
    return n && n->key == key ? n : NULL;
}

static struct payload *put(unsigned s, uint32_t key, struct payload *p) {
    struct node **place[LEVELS], *n = find(s, key, place);
    if (n) {
        struct payload *old = n->payload;
        PUBLISH(&n->payload, p);
        return old;
    }
    uint32_t height =
        1 + (uint32_t)__builtin_ctzll(mix64(p->serial) | 1ull << (2 * LEVELS - 2)) / 2;
    n = must(malloc(node_size(height)));
    *n = (struct node){.payload = p, .key = key, .height = height};
    for (unsigned level = 0; level < height; level++)
        n->next[level] = *place[level];
    for (unsigned level = 0; level < height; level++)
        PUBLISH(place[level], n);
    return NULL;
}

static struct payload *drop(unsigned s, uint32_t key) {
    struct node **place[LEVELS], *n = find(s, key, place);
    if (!n)
        return NULL;
    struct payload *old = n->payload;
    for (unsigned level = n->height; level-- > 0;)
        if (*place[level] == n)
            PUBLISH(place[level], n->next[level]);
    free(n);
    return old;
}

// Empties the upper levels, then appends nodes to each. At any instant each is a sorted part of
// level 0.
static void repair(unsigned s) {
    struct node **tail[LEVELS];
    for (unsigned level = LEVELS; level-- > 1;) {
        tail[level] = &skip_state->head[s][level];
        PUBLISH(tail[level], NULL);
    }
    for (struct node *n = skip_state->head[s][0]; n; n = n->next[0])
        for (unsigned level = 1; level < n->height; level++) {
            PUBLISH(&n->next[level], NULL);
            PUBLISH(tail[level], n);
            tail[level] = &n->next[level];
        }
}

int main(int argc, char **argv) {
    static const struct structure skiplist = {
        .name = "skiplist",
        .build = build,
        .model = model,
        .walk = walk,
        .put = put,
        .drop = drop,
        .repair = repair,
    };
    return workload_main(&skiplist, argc, argv);
}

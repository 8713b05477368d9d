// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A set of numbers, as a sorted linked list, a skip list or a hash table of chains. It has 256
// numbers at first. Random numbers are added or removed. Each thread has a set of its own.
#include "bench.h"

enum { INITIAL = 256, LEVELS = 16, BUCKETS = 128 };

static const char *const modes[] = {"list", "skip", "hash", NULL};
static const uint64_t default_operations[] = {3000000, 6000000, 12000000};
static unsigned mode;
static uint64_t operations, additions = 50, range = 2 * INITIAL;

// A node of a skip list has as many links as its height. A node of a list has one.
struct node {
    uint64_t key;
    struct node *next[];
};

struct set {
    struct node *heads[BUCKETS]; // of the chains, of the levels of a skip list, or of the one list
    uint64_t random;
};

static unsigned height_of(struct set *s) {
    return mode == 1 ? (unsigned)__builtin_ctzll(bench_random(&s->random) | 1u << (LEVELS - 1)) + 1
                     : 1;
}

static struct node *node_new(uint64_t key, unsigned height) {
    struct node *n = bench_block(sizeof *n + height * sizeof n->next[0]);
    n->key = key;
    return n;
}

// Finds the place of the link to `key` in a sorted chain: where it is, or where it belongs.
static struct node **chain_find(struct node **link, uint64_t key) {
    while (*link && (*link)->key < key)
        link = &(*link)->next[0];
    return link;
}

static struct node **skip_find(struct set *s, uint64_t key, struct node **links[LEVELS]) {
    struct node **row = s->heads;
    for (int level = LEVELS - 1; level >= 0; level--) {
        while (row[level] && row[level]->key < key)
            row = row[level]->next;
        links[level] = &row[level];
    }
    return links[0];
}

static struct node **find(struct set *s, uint64_t key, struct node **links[LEVELS]) {
    if (mode == 1)
        return skip_find(s, key, links);
    return links[0] = chain_find(&s->heads[mode == 2 ? bench_mix(key) % BUCKETS : 0], key);
}

static bool add(struct set *s, uint64_t key) {
    struct node **links[LEVELS], **at = find(s, key, links);
    if (*at && (*at)->key == key)
        return false;
    unsigned height = height_of(s);
    struct node *n = node_new(key, height);
    for (unsigned level = 0; level < height; level++) {
        n->next[level] = *links[level];
        *links[level] = n;
    }
    return true;
}

static bool take(struct set *s, uint64_t key) {
    struct node **links[LEVELS], *n = *find(s, key, links);
    if (!n || n->key != key)
        return false;
    for (unsigned level = 0; level < (mode == 1 ? LEVELS : 1) && *links[level] == n; level++)
        *links[level] = n->next[level];
    bench_free(n);
    return true;
}

static uint64_t empty(struct set *s) {
    uint64_t answer = 0;
    for (unsigned i = 0; i < (mode == 2 ? BUCKETS : 1); i++)
        while (s->heads[i]) {
            struct node *n = s->heads[i];
            answer += bench_mix(n->key);
            s->heads[i] = n->next[0];
            bench_free(n);
        }
    return answer;
}

static uint64_t work(unsigned worker) {
    struct set *s = bench_table(sizeof *s);
    uint64_t answer = 0, mine = bench_part(operations, worker);
    s->random = bench_stream(worker);
    for (unsigned i = 0; i < INITIAL;)
        i += add(s, bench_below(&s->random, range));
    for (uint64_t i = 0; i < mine; i++) {
        uint64_t key = bench_below(&s->random, range);
        if (bench_below(&s->random, 100) < additions)
            answer += 3 * add(s, key);
        else
            answer += 5 * take(s, key);
    }
    return answer + empty(s);
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'n', "operations, all threads together; 0: chosen by the structure", &operations},
        {'a', "percentage of additions", &additions},
        {'k', "all numbers are below this", &range},
        {0}};
    mode = bench_begin(argc, argv, modes, options);
    if (range < INITIAL || additions > 100)
        bench_exit(BENCH_USAGE, "-k is at least %d, -a at most 100", INITIAL);
    operations = operations ? operations : default_operations[mode];
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(operations, seconds, answer);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A sorted, singly linked list for each shard, and a very long list for timing. An insertion
// completes the node before one store links it. A removal unlinks the node by one store and then
// frees it.
#include "workload.h"

#include <time.h>

struct node {
    struct node *next;
    struct payload *payload;
    uint32_t key;
};

// The long list, or several shorter ones (lanes). `position` counts down to 1 at the end of a list,
// and `value` follows from it.
#define LANES 4096
struct link {
    struct link *next;
    uint64_t position;
    uint64_t value;
    uint32_t size; // bytes of the whole node, 64 to `longest`
    unsigned char fill[];
};

#define LONGEST 4096u
static uint64_t longest = 128;

struct state {
    struct link *chain[LANES];
    struct node *head[SHARDS];
    struct model model[SHARDS];
};

struct state *list_state;

static void build(void) {
    struct state *s = must(calloc(1, sizeof *s));
    PUBLISH(&list_state, s);
}

static struct model *model(unsigned s) { return list_state ? &list_state->model[s] : NULL; }

static bool walk(unsigned s, struct census *c) {
    if (s == 0)
        census_block(c, list_state, sizeof *list_state);
    int64_t last = -1;
    for (struct node *n = list_state->head[s]; n; n = n->next) {
        if (n->key <= last)
            return census_fail(c, "shard %u: key %u after %lld", s, n->key, (long long)last);
        last = n->key;
        census_block(c, n, sizeof *n);
        if (!census_entry(c, s, n->key, n->payload))
            return false;
    }
    return true;
}

static struct node **find(unsigned s, uint32_t key) {
    struct node **place = &list_state->head[s];
    while (*place && (*place)->key < key)
        place = &(*place)->next;
    return place;
}

static struct payload *put(unsigned s, uint32_t key, struct payload *p) {
    struct node **place = find(s, key), *n = *place;
    if (n && n->key == key) {
        struct payload *old = n->payload;
        PUBLISH(&n->payload, p);
        return old;
    }
    struct node *fresh = must(malloc(sizeof *fresh));
    *fresh = (struct node){.next = n, .payload = p, .key = key};
    PUBLISH(place, fresh);
    return NULL;
}

static struct payload *drop(unsigned s, uint32_t key) {
    struct node **place = find(s, key), *n = *place;
    if (!n || n->key != key)
        return NULL;
    struct payload *old = n->payload;
    PUBLISH(place, n->next);
    free(n);
    return old;
}

// ---- The long list.

static struct link *link_new(uint64_t random) {
    uint32_t size = 64 + (uint32_t)(random % ((longest - 64) / 8 + 1)) * 8;
    struct link *l = must(malloc(size));
    l->size = size;
    memset(l->fill, 0x33, size - offsetof(struct link, fill));
    return l;
}

// Volatile, because the compiler may otherwise leave out an allocation whose result is never used.
static void link_leak(uint64_t random) {
    struct link *volatile l = link_new(random);
    l->next = NULL;
}

static void link_publish(struct link **place, struct link *l, struct link *next) {
    l->next = next;
    l->position = next ? next->position + 1 : 1;
    l->value = mix64(l->position);
    PUBLISH(place, l);
}

// A block of each larger size, so that the heap begins with them.
static void lose_others(void) {
    for (size_t size = 512; size <= 16384; size *= 2) {
        void *volatile lost = must(malloc(size)); // what is not stored gcc 16 does not allocate
        (void)lost;
    }
}

static void grow_in_order(uint64_t count, uint64_t leak_every, uint64_t lanes) {
    uint64_t rng = 7;
    for (uint64_t i = 1; i <= count; i++) {
        struct link **place = &list_state->chain[i % lanes];
        link_publish(place, link_new(random_next(&rng)), *place);
        if (leak_every && i % leak_every == 0)
            link_leak(random_next(&rng));
    }
}

// Allocates as grow_in_order does, but links in random order.
static void grow_shuffled(uint64_t count, uint64_t leak_every, uint64_t lanes) {
    uint64_t rng = 7;
    struct link **all = must(malloc((count + 1) * sizeof *all));
    for (uint64_t i = 1; i <= count; i++) {
        all[i - 1] = link_new(random_next(&rng));
        if (leak_every && i % leak_every == 0)
            link_leak(random_next(&rng));
    }
    for (uint64_t left = count; left; left--) {
        uint64_t pick = random_next(&rng) % left;
        struct link *l = all[pick];
        all[pick] = all[left - 1];
        struct link **place = &list_state->chain[left % lanes];
        link_publish(place, l, *place);
    }
    free(all);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t chain_links(void) {
    uint64_t links = 0;
    for (unsigned i = 0; list_state && i < LANES; i++)
        links += list_state->chain[i] ? list_state->chain[i]->position : 0;
    return links;
}

static bool chain_is_good(const struct link *chain, uint64_t *due) {
    const struct link *l = chain;
    for (uint64_t position = chain ? chain->position : 0; position; position--, l = l->next) {
        *due += mix64(position);
        if (!l || l->size < 64 || l->size > LONGEST ||
            l->fill[l->size - offsetof(struct link, fill) - 1] != 0x33)
            return false;
    }
    return !l;
}

static int mode_walk(void) {
    if (chain_links() == 0) {
        printf("none: there is no long list\n");
        return EXIT_NO_STATE;
    }
    double start = seconds();
    uint64_t nodes = 0, sum = 0;
    for (unsigned i = 0; i < LANES; i++)
        for (const struct link *l = list_state->chain[i]; l; l = l->next) {
            nodes++;
            sum += l->value;
        }
    double end = seconds();

    uint64_t due = 0;
    bool good = nodes == chain_links();
    for (unsigned i = 0; good && i < LANES; i++)
        good = chain_is_good(list_state->chain[i], &due);
    good = good && sum == due;
    printf("%s seconds=%.6f nodes=%llu sum=%016llx\n", good ? "walk" : "wrong: walk", end - start,
           (unsigned long long)nodes, (unsigned long long)sum);
    return good ? 0 : EXIT_WRONG;
}

static int mode_grow(int argc, char **argv) {
    struct options o = {.threads = 1};
    uint64_t count, leak_every = 0, lanes = 1;
    bool shuffle = false;
    if (argc < 3 || !parse_number(argv[2], &count))
        return -1;
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "shuffle"))
            shuffle = true;
        else if (!strcmp(argv[i], "-o"))
            lose_others();
        else if (!strcmp(argv[i], "-l") && i + 1 < argc && parse_number(argv[i + 1], &leak_every))
            i++;
        else if (!strcmp(argv[i], "-w") && i + 1 < argc && parse_number(argv[i + 1], &lanes) &&
                 lanes && lanes <= LANES)
            i++;
        else if (!strcmp(argv[i], "-b") && i + 1 < argc && parse_number(argv[i + 1], &longest) &&
                 longest >= 64 && longest <= LONGEST)
            i++;
        else if (!parse_options(1, argv + i, &o))
            return -1;
    }
    if (!list_state)
        build();
    (shuffle ? grow_shuffled : grow_in_order)(count, leak_every, lanes);
    printf("grown nodes=%llu\n", (unsigned long long)chain_links());
    int status = mode_walk();
    return finish(&o, count ? status : 0);
}

static int more_modes(int argc, char **argv) {
    if (!strcmp(argv[1], "grow"))
        return mode_grow(argc, argv);
    return argc == 2 && !strcmp(argv[1], "walk") ? mode_walk() : -1;
}

int main(int argc, char **argv) {
    static const struct structure list = {
        .name = "list",
        .more_usage = "       list grow N [shuffle] [-o] [-l K] [-w W] [-b B] [-k]    -o: first "
                      "lose larger blocks,\n"
                      "       -l: leak a node for every K, -w: W lists, -b: of up to B bytes\n"
                      "       list walk\n",
        .build = build,
        .model = model,
        .walk = walk,
        .put = put,
        .drop = drop,
        .more_modes = more_modes,
    };
    return workload_main(&list, argc, argv);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Shards of NUMA nodes: which node's memory a block is, through allocation, moves and reopening.
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "base/nodes.h"
#include "blocks/alloc.h"
#include "blocks/returns.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "full_medium.h"
#include "media/open/shard_make.h"
#include "media/open/shard_nodes.h"
#include "media/shard_place.h"
#include "morph_fixture.h"

static const unsigned CLS = 20;

static void start_at(unsigned nodes, const char *limit, const char *shard) {
    struct pm_error err;
    pm_options_default();
    MUST(!limit || pm_option_set("PMALLOC_LIMIT", limit, &err) == PM_OK);
    MUST(!shard || pm_option_set("PMALLOC_SHARD", shard, &err) == PM_OK);
    pm_nodes = (struct pm_nodes){.count = nodes, .cores_of = {2, 2, 2}, .injected = nodes > 1};
    pm_node_move(0);
    fixture_new_heap();
    pm_tcache = pm_tcache_create();
}

static void *get(size_t size) {
    void *p = size <= PM_SMALL_MAX ? pm_tcache_pop(pm_tcache, pm_size_to_class(size)) : NULL;
    bool zero = false;
    if (p)
        return p;
    return size <= PM_SMALL_MAX ? pm_alloc_small(pm_size_to_class(size))
                                : pm_alloc_large(size, PM_PAGE_SIZE, &zero);
}

static void give(void *p) {
    if (!pm_tcache_push(pm_tcache, p) && !pm_alloc_free_cached(p) && !pm_alloc_free_further(p))
        pm_alloc_free(p, pm_find_tag(p));
}

// How many blocks caches hold that are not of their node.
static unsigned misplaced(void) {
    unsigned wrong = 0;
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            for (unsigned i = 0; i < pm_stack_count(&t->stack[cls]); i++)
                wrong += pm_node_of(t->slot[cls][i]) != t->node;
    return wrong;
}

static const size_t SIZES[] = {16, 64, 200, 1000, 5000, 16384, 20000, 100000, 3 << 20};
enum { COUNT = sizeof SIZES / sizeof *SIZES };

static void test_blocks_are_local(void) {
    start_at(3, NULL, NULL);
    void *p[3][COUNT];
    for (unsigned node = 0; node < 3; node++) {
        pm_node_move(node);
        pm_tcache_follow(pm_tcache);
        for (unsigned i = 0; i < COUNT; i++) {
            p[node][i] = get(SIZES[i]);
            CHECK_EQ(pm_node_of(p[node][i]), node);
        }
    }
    CHECK_EQ(pm_heap.shards, 3);
    CHECK_EQ(misplaced(), 0);
    good();
    // All are freed on the last node. Those of others come back there, not here.
    for (unsigned node = 0; node < 3; node++)
        for (unsigned i = 0; i < COUNT; i++)
            give(p[node][i]);
    CHECK_EQ(misplaced(), 0);
    for (unsigned i = 0; i < 2000; i++)
        CHECK_EQ(pm_node_of(get(SIZES[i % COUNT])), 2);
    CHECK_EQ(misplaced(), 0);
    good();
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.remote_frees, 12);
    for (unsigned node = 0; node < 2; node++) {
        pm_node_move(node);
        pm_tcache_follow(pm_tcache);
        for (unsigned i = 0; i < COUNT; i++)
            CHECK_EQ(pm_node_of(get(SIZES[i])), node);
    }
    good();
}

// The node's addresses are in two pieces: what lies in the second one is cached all the same.
static void test_a_second_shard_of_a_node(void) {
    start_at(2, "64M", "4M");
    void *first = get(64);
    pm_node_move(1);
    pm_tcache_follow(pm_tcache);
    void *other = get(64), *p;
    CHECK_EQ(pm_node_of(other), 1);
    pm_node_move(0);
    pm_tcache_follow(pm_tcache);
    do {
        p = get(1000);
        MUST(p);
        CHECK_EQ(pm_node_of(p), 0);
    } while (pm_shard_at(pm_heap_offset(p)) == &pm_heap.shard[0]);
    CHECK(pm_shard_at(pm_heap_offset(p)) == &pm_heap.shard[2]);
    CHECK(!pm_tcache_push(pm_tcache, p)); // this knows the first shard only
    CHECK(pm_alloc_free_further(p));
    CHECK(!pm_alloc_free_further(p)); // of two frees one fails
    CHECK(get(1000) == p);
    CHECK(!pm_alloc_free_further(other) && !pm_alloc_free_further((char *)p + 16));
    bool zero = false;
    void *large = pm_alloc_large(50000, PM_PAGE_SIZE, &zero);
    CHECK(pm_shard_at(pm_heap_offset(large)) == &pm_heap.shard[2]);
    uint64_t active = pm_extent_stats().active;
    pm_alloc_free(large, pm_find_tag(large));
    CHECK_EQ(pm_extent_stats().active, active); // cached
    CHECK(pm_alloc_large(50000, PM_PAGE_SIZE, &zero) == large);
    CHECK(!pm_alloc_free_cached(large) && pm_alloc_free_further(large));
    CHECK_EQ(pm_extent_stats().active, active);
    CHECK(pm_alloc_large(50000, PM_PAGE_SIZE, &zero) == large);
    CHECK(first && other);
    good();
}

// At the limit a thread gets blocks of other nodes, small ones past its cache.
static void test_a_node_without_memory(void) {
    start_at(2, "8M", NULL);
    pm_node_move(1);
    pm_tcache_follow(pm_tcache);
    MUST(get(64));
    pm_node_move(0);
    pm_tcache_follow(pm_tcache);
    unsigned far = 0, small = 0;
    void *p;
    for (; far < 50; small++) {
        MUST(p = get(5000));
        far += pm_node_of(p) == 1;
    }
    CHECK_EQ(misplaced(), 0);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.steps[PM_STEP_FAR], 50);
    CHECK_EQ(pm_node_of(get(100000)), 1);
    CHECK_EQ(pm_alloc_far, 1);
    CHECK(small > 700);
    good();
}

// Where no shard can be made for a node, its threads use another node's memory, and cache it.
static void test_a_node_without_shard(void) {
    start_at(2, NULL, NULL);
    MUST(mkdirat(pm_heap.dir_fd, "heap.1", 0700) == 0 &&
         mkdirat(pm_heap.dir_fd, "heap.1/x", 0700) == 0);
    pm_node_move(1);
    struct pm_tcache *t = pm_tcache;
    CHECK(pm_tcache_follow(t) == t);
    void *p = get(64);
    CHECK(p && pm_node_of(p) == 0);
    give(p);
    CHECK(get(64) == p);
    CHECK_EQ(pm_heap.shards, 1);
    CHECK_EQ(pm_remote_any(&pm_arenas[0].bin[pm_size_to_class(64)]), 0);
}

static unsigned node_recorded(unsigned shard) {
    const struct pm_shard_state *state = (const void *)pm_heap.super->state.reserved;
    return state->node[shard];
}

static void test_on_media(void) {
    start_at(3, NULL, NULL);
    pm_node_move(2);
    pm_tcache_follow(pm_tcache);
    MUST(get(64));
    CHECK_EQ(pm_heap.shards, 2);
    CHECK_EQ(node_recorded(0), 1);
    CHECK_EQ(node_recorded(1), 3);
    CHECK_EQ(node_recorded(2), 0);
}

static void test_one_node_records_nothing(void) {
    start_at(1, NULL, NULL);
    MUST(get(64));
    CHECK_EQ(node_recorded(0), 0);
}

// A heap of three nodes, reopened with fewer and with as many.
static unsigned reopen_with;
static void reopened(void) {
    struct pm_error err = {0};
    pm_options_default();
    pm_nodes = (struct pm_nodes){.count = reopen_with, .cores_of = {1, 1, 1}, .injected = true};
    MUST(pm_tables_reserve(2, 1) &&
         pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err) == PM_OK);
    CHECK_EQ(pm_heap.shards, 3);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(pm_heap.shard[i].node, (2 * i + 1) % 3 % reopen_with);
}

static void made(void) {
    start_at(3, NULL, NULL);
    MUST(pm_heap.shards == 1);
    pm_shard_node_begins(1);
    MUST(pm_shard_make(0) && pm_shard_make(2));
}

static void test_fewer_nodes(void) {
    CHECK_EQ(in_child(made), 0);
    for (reopen_with = 1; reopen_with <= 3; reopen_with++)
        CHECK_EQ(in_child(reopened), 0);
}

// A shard of its own would not help a node whose shard has addresses, but no space.
static void test_a_full_file_system_makes_no_shard(void) {
    start_at(2, NULL, NULL);
    MUST(get(64));
    full = true;
    void *p;
    while (pm_arena_fill(&pm_arenas[0], CLS, &p, 1))
        continue;
    CHECK(pm_heap.shard[0].frontier <= 2 * PM_REGION_SIZE); // addresses are left
    CHECK_EQ(pm_heap.shards, 1);
    full = false;
    CHECK(pm_arena_fill(&pm_arenas[0], CLS, &p, 1));
}

// Threads move all the time, hand blocks on, and free what they get, at random.
enum { THREADS = 4, SLOTS = 64, ROUNDS = 30000 };
static _Atomic(void *) slot[SLOTS];

static void *roam(void *arg) {
    unsigned seed = *(unsigned *)arg;
    pm_tcache = pm_tcache_create();
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t size = SIZES[(unsigned)rand_r(&seed) % (COUNT - 1)];
        if (i % 700 == 0)
            pm_node_move((unsigned)rand_r(&seed) % 3);
        unsigned char *p = get(size);
        MUST(p);
        memset(p, (int)(size >> 4) & 0xff, 16);
        memcpy(p, &size, sizeof size);
        unsigned char *old = atomic_exchange(&slot[(unsigned)rand_r(&seed) % SLOTS], p);
        if (!old)
            continue;
        memcpy(&size, old, sizeof size);
        for (unsigned k = sizeof size; k < 16; k++)
            MUST(old[k] == (unsigned char)(size >> 4));
        memset(old, 0, 16);
        give(old);
    }
    struct pm_tcache *t = pm_tcache;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(t);
    return NULL;
}

static void test_roaming_threads(void) {
    start_at(3, NULL, NULL);
    pthread_t thread[THREADS];
    unsigned seed[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        seed[i] = i;
        MUST(pthread_create(&thread[i], NULL, roam, &seed[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(misplaced(), 0);
    CHECK(pm_tcache_moves > 20);
    CHECK_EQ(pm_heap.shards, 3);
    good();
    for (unsigned i = 0; i < SLOTS; i++)
        if (slot[i])
            give(slot[i]);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes + s.large_bytes, 0);
    CHECK_EQ(s.steps[PM_STEP_FAR], 0);
    CHECK(s.remote_frees > 1000);
    pm_take_back();
    CHECK_EQ(pm_extent_stats().active, 0);
    good();
}

int main(void) {
    RUN_CHILD(blocks_are_local);
    RUN_CHILD(a_second_shard_of_a_node);
    RUN_CHILD(a_node_without_memory);
    RUN_CHILD(a_node_without_shard);
    RUN_CHILD(on_media);
    RUN_CHILD(one_node_records_nothing);
    RUN_CHILD(fewer_nodes);
    RUN_CHILD(a_full_file_system_makes_no_shard);
    RUN_CHILD(roaming_threads);
    return CHECK_DONE();
}

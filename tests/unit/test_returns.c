// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Blocks that threads of another node free: the remote sets of slabs, and who empties them.
#include <pthread.h>

#include "base/nodes.h"
#include "blocks/returns.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "morph_fixture.h"

static const unsigned CLS = 20, OTHER = 9;
static void *got[8 * PM_SLAB_BLOCKS_MAX];

static void start_at(const char *limit) {
    struct pm_error err;
    pm_options_default();
    pm_options.morph.number = PERCENT;
    MUST(!limit || pm_option_set("PMALLOC_LIMIT", limit, &err) == PM_OK);
    pm_nodes = (struct pm_nodes){.count = 2, .cores_of = {2, 2}, .injected = true};
    fixture_new_heap();
    pm_arena_first(0);
    pm_arena_first(1);
}

static unsigned fill(unsigned arena, unsigned cls, unsigned want) {
    unsigned n = 0, more;
    while (n < want && (more = pm_arena_fill(&pm_arenas[arena], cls, got + n, want - n)) > 0)
        n += more;
    return n;
}

static uint64_t used(unsigned cls) { // without the drain that statistics do
    uint64_t sum = 0;
    for (uint32_t slab = 0; slab < 100; slab++)
        if (pm_vslabs[slab].size_class == cls)
            sum += pm_classes[cls].blocks - pm_vslabs[slab].free_count;
    return sum;
}

// A freed block is out of reach until its own arena has nothing else, then all come back at once.
static void test_drained_at_refill(void) {
    start_at(NULL);
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 2 * per) == 2 * per);
    struct pm_bin *bin = &pm_arenas[0].bin[CLS];
    for (unsigned i = 0; i < 2 * per; i += 2)
        pm_remote_free(got[i]);
    CHECK_EQ(used(CLS), 2 * per);
    CHECK(pm_remote_any(bin));
    uint64_t grown = bin->steps[PM_STEP_GROW];
    CHECK_EQ(fill(0, CLS, per), per);
    CHECK_EQ(bin->steps[PM_STEP_GROW], grown);
    CHECK(!pm_remote_any(bin));
    CHECK_EQ(used(CLS), 2 * per);
    CHECK_EQ(bin->remote_returns, per);
    good();
}

// All blocks of a slab: it is entirely free then, and the last one may end it.
static void test_whole_slabs(void) {
    start_at(NULL);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls += 5) {
        unsigned per = pm_classes[cls].blocks;
        MUST(fill(1, cls, 2 * per) == 2 * per);
        for (unsigned i = 0; i < 2 * per; i++)
            pm_remote_free(got[i]);
        pm_remote_drain_all();
        CHECK_EQ(pm_arenas[1].bin[cls].remote_returns, 2 * per);
        CHECK_EQ(pm_arenas[1].bin[cls].empty, pm_arenas[1].bin[cls].slabs);
        good();
    }
    pm_take_back();
    CHECK_EQ(pm_extent_stats().active, 0);
}

// Another arena of the node finds them, too, before it grows.
static void test_other_arenas_drain(void) {
    start_at(NULL);
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 2 * per) == 2 * per);
    for (unsigned i = 0; i < 2 * per; i++)
        pm_remote_free(got[i]);
    uint64_t pages = pm_extent_stats().slab_pages;
    CHECK_EQ(fill(1, CLS, per), per);
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    good();
}

// At the limit a thread of another node gets them.
static void test_memory_is_out(void) {
    start_at("4M");
    unsigned n = fill(0, CLS, 1 << 20);
    pm_remote_free(got[0]);
    pm_remote_free(got[1]);
    CHECK(pm_arena_far(&pm_arenas[2], CLS) != NULL);
    CHECK(pm_arena_far(&pm_arenas[2], CLS) != NULL);
    CHECK(pm_arena_far(&pm_arenas[2], CLS) == NULL);
    CHECK(n > 1000);
    good();
}

// The slab morphs while blocks are in its set: there they are old blocks.
static void test_a_slab_that_morphs(void) {
    start_at("4M");
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 3 * per) == 3 * per);
    pm_arena_return(CLS, got + per + 5, per - 5);
    void *old[5];
    memcpy(old, got + per, sizeof old);
    uint32_t slab = pm_slab_of(old[0]);
    pm_remote_free(old[1]);
    pm_remote_free(old[3]);
    while (pm_vslabs[slab].size_class == CLS)
        MUST(fill(0, OTHER, 1) == 1);
    CHECK_EQ(pm_vslabs[slab].old_live, 5);
    pm_remote_free(old[0]);
    pm_remote_drain_all();
    CHECK_EQ(pm_vslabs[slab].old_live, 2);
    good();
    pm_remote_free(old[2]);
    pm_remote_free(old[4]);
    pm_remote_drain_all();
    CHECK_EQ(pm_vslabs[slab].old_live, 0);
    good();
}

// A fork meets a thread that has marked a slab as queued, but has not pushed it yet. In the child
// the slab's blocks must not stay out of reach.
static void test_a_thread_that_a_fork_has_cut_off(void) {
    start_at(NULL);
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 2 * per) == 2 * per);
    struct pm_bin *bin = &pm_arenas[0].bin[CLS];
    pm_remote_free(got[0]);
    bin->remote = 0; // as before the push
    pm_remote_free(got[per]);
    pm_remote_free(got[1]);
    pm_remote_orphans();
    pm_remote_drain_all();
    CHECK_EQ(bin->remote_returns, 3);
    CHECK_EQ(used(CLS), 2 * per - 3);
    pm_remote_free(got[2]);
    CHECK(pm_remote_any(bin));
    pm_remote_drain_all();
    good();
}

// A drain takes a slab's last block before the thread that freed it queues the slab, which is gone
// then. The slab that comes in its place must not pass for queued.
static void test_a_slab_that_is_gone(void) {
    start_at(NULL);
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 1) == 1);
    uint32_t slab = pm_slab_of(got[0]);
    struct pm_bin *bin = &pm_arenas[0].bin[CLS];
    pm_remote_free(got[0]);
    uint32_t queue = bin->remote;
    pm_remote_drain_all();
    pm_take_back();
    CHECK_EQ(pm_vslabs[slab].size_class, 0);
    bin->remote = queue; // it comes late
    pm_remote_drain_all();
    for (unsigned i = 0; i < pm_arena_count; i++)
        CHECK_EQ(pm_arenas[i].bin[0].remote, 0); // no class has this bin, so nobody drains it
    MUST(fill(0, CLS, per) == per);
    CHECK_EQ(pm_slab_of(got[0]), slab);
    pm_remote_free(got[0]);
    CHECK(pm_remote_any(bin));
    pm_remote_drain_all();
    CHECK_EQ(used(CLS), per - 1);
    good();
}

// The slab is queued in one bin and has moved to another.
static void test_a_slab_that_changes_its_arena(void) {
    start_at(NULL);
    unsigned per = pm_classes[CLS].blocks;
    MUST(fill(0, CLS, 2 * per) == 2 * per);
    void *block = got[per];
    uint32_t slab = pm_slab_of(block);
    pm_remote_free(block);
    pm_arena_return(CLS, got + per + 1, 7);
    MUST(fill(1, CLS, 7) == 7);
    CHECK_EQ(pm_vslabs[slab].arena, 1);
    struct pm_bin *from = &pm_arenas[0].bin[CLS], *to = &pm_arenas[1].bin[CLS];
    if (pm_remote_any(from)) { // nobody had to drain it
        pm_lock(&from->lock);
        pm_remote_drain(&pm_arenas[0], from);
        pm_unlock(&from->lock);
        CHECK(pm_remote_any(to));
    }
    CHECK_EQ(fill(1, CLS, 1), 1);
    CHECK(got[0] == block);
    good();
}

// Producers of node 0, consumers of node 1; every block arrives once and comes back.
enum { ROUNDS = 40000, SLOTS = 256, PAIRS = 2 };
static _Atomic(void *) slot[PAIRS][SLOTS];
static _Atomic bool done[PAIRS];

static void *produce(void *arg) {
    unsigned pair = *(unsigned *)arg, cls = pair ? OTHER : CLS;
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *block, *none = NULL;
        MUST(pm_arena_fill(&pm_arenas[pair], cls, &block, 1) == 1);
        memset(block, (int)cls, 32);
        *pm_tag_at(block) = (uint8_t)cls;
        _Atomic(void *) *to = &slot[pair][i % SLOTS];
        while (!atomic_compare_exchange_weak(to, &none, block)) {
            none = NULL;
            sched_yield();
        }
    }
    done[pair] = true;
    return NULL;
}

static void *consume(void *arg) {
    unsigned pair = *(unsigned *)arg, cls = pair ? OTHER : CLS, idle = 0;
    for (unsigned i = 0; idle < SLOTS; i++) {
        bool last = done[pair];
        unsigned char *block = atomic_exchange(&slot[pair][i % SLOTS], NULL);
        idle = block || !last ? 0 : idle + 1;
        if (!block) {
            sched_yield();
            continue;
        }
        for (unsigned k = 0; k < 32; k++)
            MUST(block[k] == cls);
        memset(block, 0, 32);
        *pm_tag_at(block) = PM_TAG_NONE;
        pm_remote_free(block);
    }
    return NULL;
}

static void test_threads(void) {
    start_at(NULL);
    pthread_t thread[2 * PAIRS];
    unsigned pair[PAIRS] = {0, 1};
    for (unsigned i = 0; i < 2 * PAIRS; i++)
        MUST(pthread_create(&thread[i], NULL, i % 2 ? consume : produce, &pair[i / 2]) == 0);
    for (unsigned i = 0; i < 2 * PAIRS; i++)
        pthread_join(thread[i], NULL);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.cls[CLS].used, 0);
    CHECK_EQ(s.cls[OTHER].used, 0);
    CHECK_EQ(s.remote_frees, PAIRS * ROUNDS);
    CHECK(s.slab_bytes < 16 * PM_SLAB_SIZE);
    good();
}

int main(void) {
    RUN_CHILD(drained_at_refill);
    RUN_CHILD(whole_slabs);
    RUN_CHILD(other_arenas_drain);
    RUN_CHILD(memory_is_out);
    RUN_CHILD(a_slab_that_morphs);
    RUN_CHILD(a_thread_that_a_fork_has_cut_off);
    RUN_CHILD(a_slab_that_is_gone);
    RUN_CHILD(a_slab_that_changes_its_arena);
    RUN_CHILD(threads);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Where an arena finds slabs: each step by its count, in the order of reach.h.
#include <pthread.h>

#include "base/nodes.h"
#include "blocks/reach.h"
#include "blocks/stats.h"
#include "media/backing/range.h"
#include "morph_fixture.h"

static const unsigned CLS = 20, OTHER = 9;

static void start_at(const char *limit) {
    struct pm_error err;
    pm_options_default();
    pm_options.morph.number = PERCENT;
    MUST(!limit || pm_option_set("PMALLOC_LIMIT", limit, &err) == PM_OK);
    fixture_new_heap();
    for (unsigned node = 0; node < pm_nodes.count; node++)
        pm_arena_first(node);
}

static void *got[64 * PM_SLAB_BLOCKS_MAX];

static unsigned fill(unsigned arena, unsigned cls, unsigned want) {
    unsigned n = 0, more;
    while (n < want && (more = pm_arena_fill(&pm_arenas[arena], cls, got + n, want - n)) > 0)
        n += more;
    return n;
}

// Leaves slabs of a class in an arena, with the first `keep` blocks of each in use.
static void leave(unsigned arena, unsigned cls, unsigned slabs, unsigned keep) {
    static void *blocks[64 * PM_SLAB_BLOCKS_MAX];
    unsigned per = pm_classes[cls].blocks;
    MUST(fill(arena, cls, slabs * per) == slabs * per);
    memcpy(blocks, got, slabs * per * sizeof *got);
    for (unsigned s = 0; s < slabs; s++)
        pm_arena_return(cls, blocks + s * per + keep, per - keep);
}

static void in_use(unsigned arena) { pm_arenas[arena].threads = 1; }

// All steps of the process, and that they add up.
static uint64_t steps(enum pm_step step) {
    struct pm_stats s;
    uint64_t sum = 0;
    pm_stats_get(&s);
    for (unsigned i = 0; i < PM_STEPS; i++)
        sum += s.steps[i];
    CHECK_EQ(sum, s.fills);
    return s.steps[step];
}

static void two_nodes(void) {
    pm_nodes = (struct pm_nodes){.count = 2, .cores_of = {3, 3}, .injected = true};
}

static void test_order(void) {
    pm_options_default();
    pm_heap_choose_range(1);
    two_nodes();
    MUST(pm_slab_init() && pm_arenas_init(99));
    CHECK_EQ(pm_arena_count, 8);
    CHECK(!pm_arena_is_made(&pm_arenas[0]) && !pm_arena_is_made(&pm_arenas[7]));
    pm_arena_first(0);
    CHECK(pm_arena_is_made(&pm_arenas[0]) && pm_arena_is_made(&pm_arenas[6]));
    CHECK(!pm_arena_is_made(&pm_arenas[3]) && !pm_arena_is_made(&pm_arenas[7]));
    pm_arena_first(1);
    const uint16_t first[] = {6, 1, 2, 7, 3, 4, 5}, fifth[] = {7, 5, 3, 6, 0, 1, 2};
    CHECK(memcmp(pm_arenas[0].others, first, sizeof first) == 0);
    CHECK(memcmp(pm_arenas[4].others, fifth, sizeof fifth) == 0);
    CHECK(pm_arenas[0].near == 3 && pm_arenas[4].near == 3);
    for (unsigned i = 0; i < 20; i++) {
        struct pm_arena *arena = pm_arena_join(i % 2);
        CHECK(!pm_arena_recovers(arena) && arena->node == i % 2);
    }
    for (unsigned i = 0; i < 6; i++)
        CHECK(pm_arenas[i].threads == 3 || pm_arenas[i].threads == 4);
}

// An arena of another node is asked only when memory is out, and then gives single blocks.
static void test_a_slab_of_the_node_and_blocks_of_others(void) {
    two_nodes();
    start_at("8M");
    unsigned per = pm_classes[CLS].blocks;
    leave(1, CLS, 2, per - 20);
    leave(3, CLS, 1, per - 1);
    uint64_t pages = pm_extent_stats().slab_pages;
    CHECK_EQ(fill(0, CLS, 40), 40);
    CHECK_EQ(steps(PM_STEP_NODE), 2);
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    uint64_t grown = steps(PM_STEP_GROW);
    CHECK_EQ(fill(0, CLS, per), per);
    CHECK_EQ(steps(PM_STEP_GROW), grown + 1);
    while (fill(0, CLS, per))
        continue;
    void *block = pm_arena_far(&pm_arenas[0], CLS);
    CHECK(block && pm_arenas[pm_vslabs[pm_slab_of(block)].arena].node == 1);
    CHECK_EQ(steps(PM_STEP_FAR), 1);
    CHECK_EQ(pm_arenas[3].bin[CLS].slabs, 1);
    uint64_t far = 1;
    for (; (block = pm_arena_far(&pm_arenas[0], CLS)) != NULL; far++)
        MUST(pm_arenas[pm_vslabs[pm_slab_of(block)].arena].node == 1);
    CHECK_EQ(steps(PM_STEP_FAR), far);
    CHECK(far > per);
    good();
}

// An empty slab of the other node serves another class there, for a thread that has no more memory.
static void test_another_node_makes_a_slab(void) {
    two_nodes();
    start_at("8M");
    leave(3, OTHER, 1, 0);
    while (fill(0, CLS, 10))
        continue;
    void *block = pm_arena_far(&pm_arenas[0], CLS);
    CHECK(block && pm_arenas[pm_vslabs[pm_slab_of(block)].arena].node == 1);
    CHECK_EQ(steps(PM_STEP_FAR), 1);
    good();
}

// Of three slabs it gives two, whether they stand in the list, in the queue, or are empty.
static void test_a_bin_in_use_keeps_its_last_slab(void) {
    start_at(NULL);
    in_use(1);
    const unsigned per = pm_classes[CLS].blocks, keeps[] = {per - 20, 5, 0};
    for (unsigned i = 0; i < 3; i++) {
        leave(1, CLS, 3, keeps[i]);
        uint64_t before = steps(PM_STEP_NODE), grown = steps(PM_STEP_GROW);
        unsigned two = 2 * (per - keeps[i]);
        CHECK_EQ(fill(0, CLS, two), two);
        CHECK_EQ(steps(PM_STEP_NODE) - before, 2);
        CHECK_EQ(steps(PM_STEP_GROW), grown);
        CHECK_EQ(fill(0, CLS, per), per);
        CHECK_EQ(steps(PM_STEP_GROW), grown + 1);
        good();
        MUST(fill(1, CLS, per - keeps[i]) == per - keeps[i]);
    }
}

static void test_another_arenas_slab_morphs(void) {
    start_at(NULL);
    leave(1, CLS, 3, 5);
    in_use(1);
    uint64_t pages = pm_extent_stats().slab_pages;
    CHECK_EQ(fill(0, OTHER, 100), 100);
    CHECK_EQ(steps(PM_STEP_MORPH_OTHER), 1);
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    CHECK_EQ(pm_arenas[1].bin[CLS].slabs, 2);
    // Its old blocks are of arena 0 now, and stay so when arena 1 takes the slab.
    CHECK_EQ(pm_arenas[0].bin[CLS].lodged_elsewhere, 5);
    CHECK_EQ(pm_arenas[1].bin[CLS].lodged_elsewhere, 0);
    good();
    CHECK_EQ(fill(1, OTHER, 10), 10);
    CHECK_EQ(steps(PM_STEP_NODE), 1);
    CHECK_EQ(pm_arenas[0].bin[CLS].lodged_elsewhere, 0);
    CHECK_EQ(pm_arenas[1].bin[CLS].lodged_elsewhere, 5);
    CHECK_EQ(pm_arenas[0].bin[OTHER].blocked, 0);
    good();
}

static void test_at_the_limit_everything_is_taken(void) {
    start_at("4M");
    unsigned per = pm_classes[CLS].blocks;
    in_use(0);
    in_use(1);
    leave(1, CLS, 1, per - 7);
    leave(1, OTHER, 63, pm_classes[OTHER].blocks);
    CHECK_EQ(fill(0, CLS, 100), 7);
    CHECK_EQ(steps(PM_STEP_LEND), 1);
    CHECK_EQ(steps(PM_STEP_NONE), 2);
    CHECK_EQ(pm_arenas[1].bin[CLS].slabs, 1);
    good();
    pm_arena_return(CLS, got, 7);
    CHECK_EQ(fill(0, CLS, 100), 7);
    good();
}

// Recovered slabs go to the arena that asks, whatever their number.
static void test_recovered_slabs(void) {
    start_at(NULL);
    for (unsigned i = 0; i < 10; i++) {
        void *blocks[4];
        uint32_t slab = pm_slab_create(CLS, 0, 0) - 1;
        MUST(pm_slab_pop(slab, blocks, 4) == 4);
        pm_arena_adopt(slab);
    }
    unsigned unused = 10 * (pm_classes[CLS].blocks - 4);
    uint64_t pages = pm_extent_stats().slab_pages;
    CHECK_EQ(fill(1, CLS, unused), unused);
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    CHECK_EQ(pm_arenas[1].bin[CLS].slabs, 10);
    CHECK_EQ(steps(PM_STEP_NODE), 10);
    good();
}

// Threads of two arenas take slabs from each other, which also morph, and return each other's
// blocks. The classes have few blocks in a slab, so slabs change hands often.
enum { ROUNDS = 60000, BATCH = 4, SWAP = 64, STAMP = 64, FIRST = 28, STEP = 4 };
static _Atomic(void *) swap[3][SWAP];

static void *work(void *arg) {
    unsigned arena = *(unsigned *)arg, seed = arena;
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned which = (i / 5000 + (unsigned)rand_r(&seed) % 2) % 3, cls = FIRST + STEP * which;
        void *blocks[BATCH];
        unsigned n = pm_arena_fill(&pm_arenas[arena], cls, blocks, BATCH);
        for (unsigned j = 0; j < n; j++) {
            memset(blocks[j], (int)cls, STAMP);
            *pm_tag_at(blocks[j]) = (uint8_t)cls;
        }
        for (unsigned j = 0; j < n; j++) {
            void *old = atomic_exchange(&swap[which][(unsigned)rand_r(&seed) % SWAP], blocks[j]);
            if (!old)
                continue;
            for (unsigned k = 0; k < STAMP; k++)
                MUST(((unsigned char *)old)[k] == cls);
            *pm_tag_at(old) = PM_TAG_NONE;
            pm_arena_return(cls, &old, 1);
        }
    }
    return NULL;
}

static void test_threads_take_each_others_slabs(void) {
    start_at(NULL);
    pthread_t thread[4];
    unsigned number[4] = {0, 1, 0, 1};
    in_use(0);
    in_use(1);
    for (unsigned i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, work, &number[i]) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    good();
    struct pm_stats s;
    pm_stats_get(&s);
    for (unsigned which = 0; which < 3; which++) {
        uint64_t held = 0;
        for (unsigned j = 0; j < SWAP; j++)
            held += swap[which][j] != NULL;
        CHECK_EQ(s.cls[FIRST + STEP * which].used, held);
    }
    CHECK(steps(PM_STEP_NODE) > 0);
}

int main(void) {
    RUN_CHILD(order);
    RUN_CHILD(a_slab_of_the_node_and_blocks_of_others);
    RUN_CHILD(another_node_makes_a_slab);
    RUN_CHILD(a_bin_in_use_keeps_its_last_slab);
    RUN_CHILD(another_arenas_slab_morphs);
    RUN_CHILD(at_the_limit_everything_is_taken);
    RUN_CHILD(recovered_slabs);
    RUN_CHILD(threads_take_each_others_slabs);
    return CHECK_DONE();
}

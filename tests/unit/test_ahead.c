// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Where a flush waits for the disk, slabs and large blocks are made ahead: how many flushes that
// saves, what stands on media, and that no request fails because of it.
#include "blocks/ahead.h"

#include <pthread.h>

#include "base/os.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "full_medium.h"
#include "session.h"

#define KB 1024u
#define MANY 3000u

static _Atomic unsigned flushes;
static void *block[MANY];

static void count_flush(const void *addr, size_t len) {
    (void)addr, (void)len;
    flushes++;
}
static void no_drain(void) {}

static void start_on(const char *persist, const char *limit) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_LIMIT", limit, 1);
    setenv("PMALLOC_PERSIST", persist, 1);
    pm_process_start();
    pm_persist = (struct pm_persist_ops){count_flush, no_drain};
}

static unsigned allocate_large(unsigned count) {
    unsigned before = flushes;
    for (unsigned i = 0; i < count; i++) {
        block[i] = pm_malloc((17 + rnd(140)) * KB);
        MUST(block[i] != NULL);
        memset(block[i], 1, 17 * KB);
    }
    return flushes - before;
}

static unsigned allocate_small(void) {
    unsigned before = flushes;
    for (unsigned size = 64; size <= 8192; size *= 2)
        for (unsigned i = 0; i < (6u << 20) / size; i++)
            MUST(pm_malloc(size) != NULL);
    return flushes - before;
}

static void test_few_flushes(void) {
    start_on("page", "4G");
    unsigned large = allocate_large(1500), small = allocate_small();
    uint64_t slabs = pm_extent_stats().slab_pages / 16;
    printf("  %u flushes for 1500 large blocks, %u for %lu slabs\n", large, small,
           (unsigned long)slabs);
    CHECK(large < 1500 / 6);
    CHECK(small < slabs / 2);
    verify();
}

static void test_other_media_make_one_at_a_time(void) {
    start_on("line", "4G");
    unsigned large = allocate_large(300);
    CHECK(large >= 300);
    CHECK_EQ(pm_extent_stats().cached, 0);
    for (unsigned i = 1; i <= PM_CLASSES; i++)
        CHECK(pm_arenas[0].bin[i].empty <= 1);
}

static void without_decay(void) {
    setenv("PMALLOC_DECAY_MS", "0", 1);
    start_on("page", "4G");
    allocate_large(300);
    CHECK_EQ(pm_extent_stats().cached, 0);
    verify();
}
static void test_nothing_without_decay(void) { without_decay(); }

// ---- at the limit -------------------------------------------------------------------------------

static unsigned blocks_until_full(size_t size) {
    unsigned count = 0;
    while (pm_malloc(size))
        count++;
    return count;
}

static unsigned *counted; // shared with the children

static void count_on(const char *persist, size_t first, size_t then) {
    start_on(persist, "48M");
    for (unsigned i = 0; i < 40; i++)
        MUST(pm_malloc(first + i % 4 * first / 4) != NULL);
    *counted = blocks_until_full(then);
    verify();
}

static size_t first_size, then_size;
static void ordered(void) { count_on("line", first_size, then_size); }
static void ahead(void) { count_on("page", first_size, then_size); }

// What was made ahead of one size serves requests of another size. Blocks may lie elsewhere, so the
// gaps between them may hold one more or less.
static void test_as_many_blocks_fit(void) {
    static const size_t sizes[][2] = {
        {20 * KB, 1500 * KB}, {60 * KB, 64},        {300 * KB, 40 * KB},
        {100, 2000 * KB},     {4000, 8000},         {8000, 100 * KB},
        {500 * KB, 1 << 20},  {200 * KB, 200 * KB}, {64, 64}};
    counted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        first_size = sizes[i][0];
        then_size = sizes[i][1];
        fixture_drop();
        mkdir(fixture_root, 0700);
        CHECK_EQ(in_child(ordered), 0);
        unsigned before = *counted;
        fixture_drop();
        mkdir(fixture_root, 0700);
        CHECK_EQ(in_child(ahead), 0);
        printf("  %zu then %zu: %u, made ahead %u\n", first_size, then_size, before, *counted);
        CHECK(*counted + before / 50 + 1 >= before);
    }
}

static void test_a_full_medium(void) {
    start_on("page", "4G");
    allocate_large(400);
    unsigned mine = 0;
    full = true;
    while (pm_malloc(90 * KB))
        mine++;
    verify();
    for (unsigned i = 0; i < 100; i++)
        pm_free(block[i]);
    CHECK(pm_malloc(18 * KB) != NULL);
    printf("  %u blocks were made ahead\n", mine);
    full = false;
    CHECK(pm_malloc(90 * KB) != NULL);
    verify();
}

// ---- age ----------------------------------------------------------------------------------------

static void test_what_is_not_wanted_goes(void) {
    setenv("PMALLOC_DECAY_MS", "3600000", 1);
    start_on("page", "4G");
    allocate_large(600);
    allocate_small();
    unsigned cached = (unsigned)pm_extent_stats().cached, before = flushes;
    CHECK(cached > 10);
    pm_options.decay_ms.number = 1; // an hour is over
    pm_extent_cache_age();
    CHECK_EQ(pm_extent_stats().cached, 0);
    CHECK(flushes - before <= 1);
    for (unsigned i = 0; i < 4 * pm_arena_count * PM_CLASSES; i++)
        pm_arenas_age();
    for (unsigned i = 1; i <= PM_CLASSES; i++)
        CHECK(pm_arenas[0].bin[i].empty <= 1);
    verify();
}

// ---- the end ------------------------------------------------------------------------------------

static void use_and_die(void) {
    settings();
    setenv("PMALLOC_PERSIST", "page", 1);
    pm_process_start();
    add_nodes();
    for (unsigned i = 0; i < 400; i++)
        pm_malloc((1 + rnd(200)) * KB);
    verify();
    die();
}

static void look(void) {
    settings();
    setenv("PMALLOC_PERSIST", rnd(2) ? "line" : "page", 1);
    pm_process_start();
    list_length(pmalloc_get_root(0));
    CHECK_EQ(pm_extent_stats().cached, 0);
    CHECK(pm_extent_stats().active_pages < 200);
    verify();
    for (unsigned i = 0; i < 100; i++)
        pm_malloc((1 + rnd(200)) * KB);
    verify();
}

static void test_recovery_frees_what_was_made_ahead(void) {
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(in_child(use_and_die), 128 + SIGKILL);
        CHECK_EQ(in_child(look), 0);
        rnd(5);
    }
}

// ---- threads ------------------------------------------------------------------------------------

static void *churn(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed;
    void *mine[200] = {0};
    for (unsigned i = 0; i < 20000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        void **slot = &mine[(random >> 33) % 200];
        pm_free(*slot);
        size_t size = 16u << (random >> 50) % 14;
        *slot = pm_malloc(size);
        if (*slot)
            memset(*slot, (int)i, size < 256 ? size : 256);
    }
    for (unsigned i = 0; i < 200; i++)
        pm_free(mine[i]);
    return NULL;
}

static void test_threads(void) {
    setenv("PMALLOC_DECAY_MS", "20", 1);
    start_on("page", "256M");
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, churn, (void *)(i + 1)) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    verify();
}

int main(void) {
    RUN_CHILD(few_flushes);
    RUN_CHILD(other_media_make_one_at_a_time);
    RUN_CHILD(nothing_without_decay);
    RUN_CHILD(as_many_blocks_fit);
    RUN_CHILD(a_full_medium);
    RUN_CHILD(what_is_not_wanted_goes);
    RUN_CHILD(recovery_frees_what_was_made_ahead);
    RUN_CHILD(threads);
    return CHECK_DONE();
}

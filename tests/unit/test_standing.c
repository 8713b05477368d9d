// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Standing extents: a freed huge block, or a large one of a kind, is handed out again without a
// store to media; what ends its entry; that it takes no space which would not be kept anyway.
#include "pages/extent_standing.h"

#include <pthread.h>

#include "blocks/alloc.h"
#include "blocks/extent_cache.h"
#include "blocks/found.h"
#include "blocks/pinned.h"
#include "blocks/verify.h"
#include "heap_fixture.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "process/start.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static unsigned flushes, drains;

static void count_flush(const void *addr, size_t len) {
    (void)addr, (void)len;
    flushes++;
}
static void count_drain(void) { drains++; }

static void start_with(const char *decay_ms, const char *limit) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_LIMIT", limit, 1);
    setenv("PMALLOC_DECAY_MS", decay_ms, 1);
    pm_process_start();
    pm_persist = (struct pm_persist_ops){count_flush, count_drain};
    pm_free(pm_malloc(32 * KIB));
    flushes = drains = 0;
}

static void start(void) { start_with("3600000", "1G"); }

static struct pm_shard_extents *extents(void) { return pm_heap.shard[0].extents; }
static unsigned standing(void) { return extents()->standing_count; }

static void verify(void) {
    struct pm_error err = {0};
    CHECK_EQ(pm_verify(true, &err), PM_OK);
    CHECK_STR(err.text, "");
}

static uint32_t index_of(const void *p) {
    return *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
}

static void test_steady_state_touches_no_media(void) {
    start();
    char *p = pm_malloc(4 * MIB), *q = p;
    memset(p, 1, 4 * MIB);
    uint64_t live = pm_log_stats(&pm_heap.shard[0]).live;
    flushes = drains = 0;
    for (unsigned i = 0; i < 1000; i++) {
        pm_free(q);
        CHECK(standing() == 1 && *pm_tag_at(p) == PM_TAG_NONE && pm_extents[index_of(p)].stands);
        q = pm_malloc(4 * MIB);
        CHECK(q == p && standing() == 0 && !pm_extents[index_of(p)].stands);
    }
    CHECK(flushes == 0 && drains == 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live);
    verify();
}

// Of two frees of a block one fails, and what stands is no block.
static void test_no_second_free(void) {
    start();
    char *p = pm_malloc(4 * MIB);
    CHECK(pm_extent_stand_block(p));
    CHECK(!pm_extent_stand_block(p) && !pm_extent_free_block(p) && !pm_extent_find(p));
    CHECK_EQ(pm_find_tag(p), PM_TAG_NONE);
    CHECK_EQ(standing(), 1);
    char *small = pm_malloc(100 * KIB); // extent caches have these
    CHECK(!pm_extent_stand_block(small) && pm_extent_find(small));
    verify();
}

// What the header of the extent says may forbid that it stands.
static void test_what_may_stand(void) {
    start();
    struct pm_extent *e = &pm_extents[index_of(pm_malloc(4 * MIB))], was = *e;
    CHECK(pm_standing_may(e));
    e->slab = 1;
    CHECK(!pm_standing_may(e));
    *e = was;
    e->held = 1;
    CHECK(!pm_standing_may(e));
    *e = was;
    e->used = 10; // there is room behind the block
    CHECK(!pm_standing_may(e));
    *e = was;
    e->log = PM_LOG_NOWHERE;
    CHECK(!pm_standing_may(e));
    *e = was;
    CHECK(pm_standing_may(e));
}

// A huge block gets its very length, so that its end is never another block's.
static void test_lengths(void) {
    start();
    char *four = pm_malloc(4 * MIB), *five = pm_malloc(5 * MIB), *beside = pm_malloc(KIB);
    pm_free(four);
    pm_free(five);
    CHECK_EQ(standing(), 2);
    CHECK(pm_malloc(5 * MIB - 100) == five && pm_malloc(4 * MIB) == four && beside);
    pm_free(four);
    CHECK(pm_memalign(16 * MIB, 4 * MIB) != four || ((uintptr_t)four & (16 * MIB - 1)) == 0);
    char *nearly = pm_malloc(2 * MIB - 40 * KIB); // rounded it would be huge
    memset(nearly, 'n', 2 * MIB - 40 * KIB);
    flushes = 0;
    for (unsigned i = 0; i < 100; i++) {
        pm_free(nearly);
        CHECK(pm_malloc(2 * MIB - 40 * KIB) == nearly);
    }
    CHECK_EQ(flushes, 0);
    verify();
}

// What is warm is used again; what has stood for longer ages.
static void test_the_newest_first(void) {
    start();
    char *block[3];
    for (unsigned i = 0; i < 3; i++)
        block[i] = pm_malloc(4 * MIB);
    for (unsigned i = 0; i < 3; i++)
        pm_free(block[i]);
    for (unsigned i = 3; i-- > 0;)
        CHECK(pm_malloc(4 * MIB) == block[i]);
    verify();
}

static bool ended(uint64_t steps) {
    struct pm_shard *s = &pm_heap.shard[0];
    pm_lock(&s->lock);
    bool any = pm_standing_end(s, steps);
    pm_unlock(&s->lock);
    return any;
}

// Each ends at its own age, and its entry with it, however entries end on this medium.
static void by_age(enum pm_durability medium) {
    start();
    pm_durability = medium;
    char *block[4], *beside = pm_malloc(4 * MIB);
    for (unsigned i = 0; i < 4; i++)
        block[i] = pm_malloc((3 + i) * MIB);
    uint64_t live = pm_log_stats(&pm_heap.shard[0]).live;
    for (unsigned i = 0; i < 4; i++) {
        pm_free(block[i]);
        extents()->decay.step += i == 1; // the first two are older
    }
    CHECK(!ended(2) && standing() == 4);
    CHECK(ended(1) && standing() == 2);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live - 2);
    CHECK(!pm_extents[index_of(block[0])].stands && pm_extents[index_of(block[2])].stands);
    verify();
    CHECK(ended(0) && standing() == 0 && !ended(0));
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live - 4);
    CHECK_EQ(*pm_tag_at(beside), PM_TAG_EXTENT);
    verify();
}

static void test_each_at_its_age(void) { by_age(PM_DURABLE_LINE); }
static void test_each_at_its_age_on_a_disk(void) { by_age(PM_DURABLE_PAGE); }

// A node's threads get what stands in the memory of that node.
static void test_nodes(void) {
    setenv("PMALLOC_TOPOLOGY", "2x1", 1);
    start();
    char *p = pm_malloc(4 * MIB);
    unsigned node = pm_node_of(p);
    pm_free(p);
    const struct pm_sought sought = {1024, 1, PM_KIND_CONSERVATIVE, 0};
    CHECK_EQ(pm_standing_take(1 - node, &sought), 0);
    CHECK_EQ(pm_standing_take(node, &sought), index_of(p));
}

static bool all_zero(const char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i])
            return false;
    return true;
}

static void test_zeroes(void) {
    start();
    static const size_t sizes[] = {4 * MIB, 3 * MIB + 5, 40 * MIB};
    for (unsigned i = 0; i < 3; i++) {
        char *p = pm_malloc(sizes[i]);
        memset(p, 'x', sizes[i]);
        pm_free(p);
        char *q = pm_calloc(1, sizes[i]);
        CHECK(q == p && all_zero(q, sizes[i]));
        pm_free(q);
    }
    verify();
}

// What would take new space finds what stands first, joined with what is free beside it.
static void test_need(void) {
    start_with("3600000", "64M");
    char *block[8];
    for (unsigned i = 0; i < 8; i++)
        block[i] = pm_malloc(4 * MIB);
    uint64_t length = pm_heap.length;
    for (unsigned i = 0; i < 8; i++)
        pm_free(block[i]);
    CHECK_EQ(standing(), 8);
    char *larger = pm_malloc(20 * MIB);
    CHECK(larger && standing() == 0);
    CHECK_EQ(pm_heap.length, length);
    pm_free(larger);
    CHECK_EQ(standing(), 1);
    for (unsigned i = 0; i < 28; i++) // slabs, too
        CHECK(pm_memalign(PM_PAGE_SIZE, MIB) != NULL);
    CHECK(standing() == 0 && pm_heap.length == length);
    verify();
}

// A growing block gets the place of what stands behind it.
static void test_growth_over_it(void) {
    start();
    char *p = pm_malloc(4 * MIB), *behind = pm_malloc(4 * MIB), *beside = pm_malloc(4 * MIB);
    MUST(beside && behind == p + 4 * MIB);
    pm_free(behind);
    CHECK_EQ(standing(), 1);
    CHECK(pm_alloc_resize(index_of(p), 7 * MIB) && standing() == 0);
    verify();
}

static void test_bound(void) {
    start();
    char *block[PM_STANDING + 1];
    for (unsigned i = 0; i <= PM_STANDING; i++)
        block[i] = pm_malloc(2 * MIB + i * 4 * KIB);
    for (unsigned i = 0; i < PM_STANDING; i++)
        pm_free(block[i]);
    CHECK_EQ(standing(), PM_STANDING);
    pm_free(block[PM_STANDING]);
    CHECK_EQ(standing(), 1);
    CHECK(extents()->reclaimed.pages >= PM_STANDING * PM_HUGE_PAGES);
    verify();
    pm_trim();
    CHECK_EQ(standing(), 0);
    verify();
}

// It goes with age, and then its space does, along the curve of decay.
static void test_age(void) {
    start_with("400", "1G"); // a tenth is 40 ms
    char *p = pm_malloc(8 * MIB);
    memset(p, 1, 8 * MIB);
    uint64_t full = fixture_blocks();
    pm_free(p);
    CHECK_EQ(standing(), 1);
    for (unsigned i = 0; i < 500 && fixture_blocks() + 8 * MIB > full; i++) {
        pm_extent_purge(false);
        usleep(10000);
    }
    CHECK(standing() == 0 && fixture_blocks() + 8 * MIB <= full);
    verify();
}

static void test_nothing_stands_without_decay(void) {
    start_with("0", "1G");
    pm_free(pm_malloc(4 * MIB));
    pm_free(pmalloc_alloc(200 * KIB, 0, PMALLOC_POINTER_FREE));
    pm_free(pmalloc_alloc(200 * KIB, 0, PMALLOC_PINNED));
    CHECK_EQ(standing(), 0);
    verify();
}

static void test_end(void) {
    start();
    char *kept = pm_malloc(4 * MIB), *gone = pm_malloc(4 * MIB);
    uint64_t live = pm_log_stats(&pm_heap.shard[0]).live;
    void *free_one = pmalloc_alloc(200 * KIB, 0, PMALLOC_POINTER_FREE);
    pm_free(gone);
    pm_free(free_one);
    CHECK_EQ(standing(), 2);
    pm_extent_cache_end();
    CHECK_EQ(standing(), 0);
    CHECK(pm_log_stats(&pm_heap.shard[0]).live < live);
    CHECK_EQ(*pm_tag_at(kept), PM_TAG_EXTENT);
    verify();
}

// Random requests, with what stands and without: no more space is in use at any time.
static uint64_t *peak; // shared with the children

static uint64_t kept_pages(void) {
    const struct pm_shard_extents *x = extents();
    return x->active.pages + x->reclaimed.pages;
}

static void random_requests(bool stands) {
    enum { HELD = 24 };
    static char *held[HELD];
    start();
    for (unsigned i = 0; i < 6000; i++) {
        unsigned at = (unsigned)rnd(HELD);
        size_t size = rnd(3)   ? (2 + rnd(6)) * MIB
                      : rnd(2) ? 20 * KIB + rnd(2 * MIB)
                               : 2 * MIB + rnd(6 * MIB);
        pm_free(held[at]);
        pm_lock(&pm_heap.shard[0].lock);
        if (!stands)
            pm_standing_end(&pm_heap.shard[0], 0);
        pm_unlock(&pm_heap.shard[0].lock);
        held[at] = pm_malloc(size);
        MUST(held[at]);
        *peak = kept_pages() > *peak ? kept_pages() : *peak;
    }
    verify();
}

static void with(void) { random_requests(true); }
static void without(void) { random_requests(false); }

static uint64_t peak_of(void (*run)(void)) {
    *peak = 0;
    CHECK_EQ(in_child(run), 0);
    fixture_clear();
    return *peak;
}

// One sequence says little: where a block lies decides what fits beside it.
static void test_peak(void) {
    peak = mmap(NULL, sizeof *peak, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(peak != MAP_FAILED);
    uint64_t more = 0, usual = 0;
    for (unsigned i = 0; i < 9; i++) {
        more += peak_of(with);
        usual += peak_of(without);
        fixture_seed += 0x9e3779b97f4a7c15ull;
    }
    printf("  %lu pages at most, and without it %lu\n", (unsigned long)more, (unsigned long)usual);
    CHECK(more > 0 && more <= usual);
}

// ---- kinds --------------------------------------------------------------------------------------

static void *of(unsigned flags, size_t size) { return pmalloc_alloc(size, 0, flags); }

static void test_kinds(void) {
    start();
    static const unsigned flags[] = {PMALLOC_POINTER_FREE, PMALLOC_TYPE(3), PMALLOC_TYPE(4),
                                     PMALLOC_TYPE(3) | PMALLOC_POINTER_FREE};
    char *p[4];
    for (unsigned i = 0; i < 4; i++)
        p[i] = of(flags[i], 200 * KIB);
    for (unsigned i = 0; i < 4; i++)
        pm_free(p[i]);
    CHECK_EQ(standing(), 4);
    flushes = drains = 0;
    for (unsigned i = 0; i < 4; i++) {
        CHECK(of(flags[i], 190 * KIB) == p[i]); // up to an eighth more
        CHECK_EQ(pm_find(p[i]).type, PMALLOC_TYPE_OF(flags[i]));
        CHECK_EQ(standing(), 3 - i);
    }
    CHECK(flushes == 0 && drains == 0);
    pm_free(p[1]);
    CHECK(of(flags[1], 170 * KIB) && flushes > 0 && standing() == 0); // more than an eighth
    verify();
}

// A pinned block that was freed is free on media before its extent is another block's.
static void test_pinned(void) {
    start();
    char *p = of(PMALLOC_PINNED, 200 * KIB);
    const struct pm_extent *e = &pm_extents[index_of(p)];
    CHECK(pm_pinned_large_is_used(e));
    for (unsigned i = 0; i < 100; i++) {
        flushes = drains = 0;
        pm_free(p);
        CHECK(flushes == 1 && drains == 1);
        CHECK(standing() == 1 && !pm_pinned_large_is_used(e));
        CHECK(of(PMALLOC_PINNED, 200 * KIB) == p && pm_pinned_large_is_used(e));
        CHECK(flushes == 2 && drains == 2);
    }
    pmalloc_op op[2];
    pmalloc_defer_free(&op[0], p);
    CHECK_EQ(pmalloc_publish(op, 1), 0);
    CHECK(standing() == 1 && !pm_pinned_large_is_used(e));
    CHECK(pmalloc_reserve(&op[0], 200 * KIB, 0, PMALLOC_PINNED) == p);
    CHECK(!pm_pinned_large_is_used(e)); // until it is published
    pmalloc_cancel(op, 1);
    CHECK_EQ(standing(), 1);
    verify();
}

// ---- threads ------------------------------------------------------------------------------------

static void *churn(void *number) {
    enum { HELD = 6 };
    uint64_t *held[HELD] = {0}, random = (uint64_t)(uintptr_t)number;
    for (unsigned i = 0; i < 3000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned at = random >> 32 & 0xffff;
        at %= HELD;
        if (held[at] && held[at][0] != (uint64_t)(uintptr_t)held[at])
            return (void *)1;
        pm_free(held[at]);
        size_t size = (2 + (random >> 50) % 4) * MIB;
        unsigned kind = random >> 60 & 3;
        held[at] = kind == 1   ? of(PMALLOC_POINTER_FREE, size / 16)
                   : kind == 2 ? of(PMALLOC_PINNED, size / 16)
                               : pm_malloc(size);
        held[at][0] = (uint64_t)(uintptr_t)held[at];
    }
    for (unsigned at = 0; at < HELD; at++)
        pm_free(held[at]);
    return NULL;
}

static void test_threads(void) {
    start();
    pthread_t thread[4];
    for (unsigned i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)(i + 1)) == 0);
    for (unsigned i = 0; i < 4; i++) {
        void *wrong = NULL;
        pthread_join(thread[i], &wrong);
        CHECK(!wrong);
    }
    verify();
}

int main(void) {
    RUN_CHILD(steady_state_touches_no_media);
    RUN_CHILD(no_second_free);
    RUN_CHILD(what_may_stand);
    RUN_CHILD(lengths);
    RUN_CHILD(the_newest_first);
    RUN_CHILD(each_at_its_age);
    RUN_CHILD(each_at_its_age_on_a_disk);
    RUN_CHILD(nodes);
    RUN_CHILD(zeroes);
    RUN_CHILD(need);
    RUN_CHILD(growth_over_it);
    RUN_CHILD(bound);
    RUN_CHILD(age);
    RUN_CHILD(nothing_stands_without_decay);
    RUN_CHILD(end);
    RUN_CHILD(kinds);
    RUN_CHILD(pinned);
    RUN_CHILD(peak);
    RUN_CHILD(threads);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Thread caches: the order blocks leave in, refill and trim, what goes back and when.
#include "heap_fixture.h"
#include "stats.h"
#include "tcache.h"

static void start(void) {
    pm_options_default();
    fixture_new_heap();
}

static void *take(struct pm_tcache *t, unsigned cls) {
    void *p = pm_tcache_pop(t, cls);
    if (!p && pm_tcache_refill(t, cls))
        p = pm_tcache_pop(t, cls);
    return p;
}

static void give(struct pm_tcache *t, unsigned cls, void *p) {
    if (pm_tcache_push(t, p))
        return;
    pm_tcache_trim(t, cls);
    CHECK(pm_tcache_push(t, p));
}

static void test_blocks_leave_by_rising_address(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        char *last = NULL;
        uint32_t slab = 0;
        for (unsigned i = 0; i < pm_classes[cls].blocks; i++) {
            char *p = take(t, cls);
            CHECK(p != NULL && (uintptr_t)p % 16 == 0);
            CHECK_EQ(pm_tag[pm_granule(p)], cls);
            if (i)
                CHECK(p == last + pm_classes[cls].size && pm_slab_of(p) == slab);
            last = p;
            slab = pm_slab_of(p);
        }
    }
}

static void test_last_in_first_out(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    void *a = take(t, 5), *b = take(t, 5);
    CHECK(pm_tcache_push(t, a) && pm_tcache_push(t, b));
    CHECK(pm_tcache_pop(t, 5) == b && pm_tcache_pop(t, 5) == a);
}

// Whatever is no allocated small block takes the slow path.
static void test_push_refuses(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    char *p = take(t, 8);
    int local;
    CHECK(!pm_tcache_push(t, NULL));
    CHECK(!pm_tcache_push(t, &local));
    CHECK(!pm_tcache_push(t, p + 16));
    CHECK(!pm_tcache_push(t, p + 8));
    CHECK(!pm_tcache_push(t, p + 1));
    CHECK(!pm_tcache_push(t, p - PM_SLAB_SIZE));
    CHECK(!pm_tcache_push(t, pm_heap_at(PM_HEAP_RANGE - 16)));
    CHECK(!pm_tcache_push(&pm_no_tcache, p));
    CHECK(pm_tcache_push(t, p));
    CHECK(!pm_tcache_push(t, p)); // twice
    uint32_t extent = pm_extent_take(10, 1);
    CHECK(pm_extent_publish(extent, false));
    CHECK(!pm_tcache_push(t, pm_extent_address(&pm_extents[extent])));
    CHECK(pm_tcache_pop(&pm_no_tcache, 8) == NULL);
}

static void test_bounded(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    static void *blocks[2000];
    for (unsigned cls = 1; cls <= PM_CLASSES; cls += 7) {
        for (unsigned i = 0; i < 2000; i++)
            blocks[i] = take(t, cls);
        for (unsigned i = 0; i < 2000; i++) {
            give(t, cls, blocks[i]);
            CHECK(t->stack[cls].n <= pm_classes[cls].tcache_cap);
        }
        CHECK(pm_tcache_held(cls) <= pm_classes[cls].tcache_cap);
        CHECK_EQ(pm_tcache_held(cls), t->stack[cls].n);
    }
    // Trimming gives the older half away: the last freed block comes first again.
    CHECK(pm_tcache_pop(t, 36) == blocks[1999]);
}

static void test_flush_and_destroy_return_everything(void) {
    start();
    static void *blocks[5000];
    static unsigned classes[5000];
    struct pm_tcache *a = pm_tcache_create(), *b = pm_tcache_create();
    CHECK(a != b && a->arena != b->arena);
    CHECK_EQ(pm_tcache_live(), 2);
    for (unsigned i = 0; i < 5000; i++) {
        classes[i] = 1 + (unsigned)rnd(PM_CLASSES);
        blocks[i] = take(i % 2 ? a : b, classes[i]);
        CHECK(blocks[i] != NULL);
    }
    for (unsigned i = 0; i < 5000; i++) // half of them in the other's cache
        give(rnd(2) ? a : b, classes[i], blocks[i]);
    pm_tcache_flush(a);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        CHECK_EQ(a->stack[cls].n, 0);
    pm_tcache_destroy(a);
    pm_tcache_destroy(b);
    CHECK_EQ(pm_tcache_live(), 0);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes, 0);
    CHECK_EQ(s.cached_bytes, 0);
    uint64_t slabs = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        slabs += s.cls[cls].slabs;
    CHECK(slabs <= 2 * PM_CLASSES); // an empty one for each arena and class at most
    CHECK_EQ(s.slab_bytes, slabs * PM_SLAB_SIZE);
    CHECK_EQ(pm_extent_stats().active, slabs);
    for (uint64_t g = 0; g < pm_heap.frontier >> PM_GRANULE_SHIFT; g++)
        if (pm_tag[g]) {
            CHECK_EQ(pm_tag[g], 0);
            break;
        }
    struct pm_tcache *again = pm_tcache_create(); // a spare one
    CHECK(again == a || again == b);
    CHECK(take(again, 3) != NULL);
}

static void test_orphans_of_a_fork(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    void *p = take(mine, 9), *q = take(other, 9);
    CHECK(p && q);
    pm_tcache_orphans(mine);
    CHECK_EQ(pm_tcache_live(), 1);
    CHECK(pm_tcache_push(mine, p));
}

// A thread that stood within pm_tcache_trim(): what it had returned already was handed out anew.
static void test_an_orphan_within_a_flush(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    void *got[400], *p = take(other, 9);
    CHECK(pm_tcache_push(other, p));
    struct pm_stack *s = &other->stack[9];
    mine->arena = other->arena;
    unsigned n = (unsigned)pm_stack_seize(s);
    pm_arena_flush(9, s->slot, n / 2);
    for (unsigned i = 0; i < 200; i++)
        got[i] = take(mine, 9);
    pm_tcache_orphans(mine);
    CHECK(pm_tcache_lost);
    for (unsigned i = 200; i < 400; i++)
        got[i] = take(mine, 9);
    for (unsigned i = 0; i < 400; i++)
        for (unsigned j = 0; j < i; j++)
            if (got[i] == got[j]) {
                CHECK(got[i] != got[j]);
                return;
            }
}

static void test_out_of_memory(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "4M", &err) == PM_OK);
    fixture_new_heap();
    struct pm_tcache *t = pm_tcache_create();
    unsigned got = 0;
    while (take(t, 20))
        got++;
    CHECK_EQ(got, 64 * pm_classes[20].blocks);
    CHECK(!pm_tcache_refill(t, 20));
}

int main(void) {
    RUN_CHILD(blocks_leave_by_rising_address);
    RUN_CHILD(last_in_first_out);
    RUN_CHILD(push_refuses);
    RUN_CHILD(bounded);
    RUN_CHILD(flush_and_destroy_return_everything);
    RUN_CHILD(orphans_of_a_fork);
    RUN_CHILD(an_orphan_within_a_flush);
    RUN_CHILD(out_of_memory);
    return CHECK_DONE();
}

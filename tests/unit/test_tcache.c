// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Thread caches: the order in which blocks leave, refill and trim, and which blocks are returned
// when.

#include "blocks/alloc.h"
#include "blocks/stats.h"
#include "blocks/tcache.h"
#include "heap_fixture.h"

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
            CHECK_EQ(*pm_tag_at(p), cls);
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

// Only an allocated small block may be pushed. Everything else takes the slow path.
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
    CHECK(!pm_tcache_push(t, p)); // a second time
    uint32_t extent = pm_extent_take(10, 1);
    CHECK(pm_extent_publish(extent, false));
    CHECK(!pm_tcache_push(t, pm_extent_address(&pm_extents[extent])));
    CHECK(pm_tcache_pop(&pm_no_tcache, 8) == NULL);
}

// A request leaves a seized stack alone, and as it found it, however many handlers are nested.
static void test_a_seized_stack_is_nobody_elses(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    void *a = take(t, 5), *b = take(t, 5);
    struct pm_stack *s = &t->stack[5];
    CHECK(pm_tcache_push(t, a) && pm_stack_seize(s));
    uint32_t n = s->n;
    for (unsigned i = 0; i < 70000; i++) { // more than `seized` counts
        CHECK(!pm_tcache_pop(t, 5) && !pm_tcache_push(t, b) && !pm_stack_seize(s));
        if (s->seized != -1)
            break;
    }
    CHECK_EQ(s->seized, -1);
    CHECK_EQ(s->n, n);
    pm_stack_leave(s);
    CHECK(pm_tcache_push(t, b) && pm_tcache_pop(t, 5) == b && pm_tcache_pop(t, 5) == a);
    // Neither does an empty or a full stack stay seized.
    while (pm_tcache_pop(t, 5)) {
    }
    CHECK_EQ(s->seized, 0);
    s->cap = 0;
    CHECK(!pm_tcache_push(t, a) && s->seized == 0);
}

enum { BATCH = 4096 };
static void *batch[BATCH];

static void take_and_give(struct pm_tcache *t, unsigned cls, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        batch[i] = take(t, cls);
    for (unsigned i = 0; i < count; i++)
        give(t, cls, batch[i]);
}

static void test_a_stack_grows_to_the_batch(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    unsigned cls = pm_size_to_class(64), count = 2000;
    for (unsigned round = 0; round < 16; round++)
        take_and_give(t, cls, count);
    const struct pm_bin *bin = &t->arena->bin[cls];
    uint64_t fills = bin->fills, returns = bin->returns;
    take_and_give(t, cls, count);
    CHECK_EQ(bin->fills, fills); // the whole batch fits
    CHECK_EQ(bin->returns, returns);
    CHECK(t->stack[cls].cap >= count && t->stack[cls].cap <= 2 * count);
    // All of it is known and comes back.
    CHECK_EQ(pm_tcache_held(cls), t->stack[cls].n);
    pm_tcache_return(t);
    CHECK_EQ(t->stack[cls].cap, pm_classes[cls].tcache_cap);
    CHECK_EQ(pm_tcache_held(cls), 0);
    uint64_t slabs = bin->slabs;
    CHECK_EQ(pm_arenas_drop_empty(), slabs);
    CHECK_EQ(pm_extent_stats().active, 0);
}

static void test_what_stacks_grow_is_bounded(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    for (unsigned round = 0; round < 12; round++)
        for (unsigned cls = 1; cls <= 24; cls++)
            take_and_give(t, cls, BATCH);
    uint64_t beyond = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        uint64_t cap = t->stack[cls].cap, usual = pm_classes[cls].tcache_cap;
        CHECK(cap <= 4096 && (cap == usual || cap * pm_classes[cls].size <= 1 << 20));
        beyond += (cap - usual) * pm_classes[cls].size;
    }
    CHECK(beyond > 0 && beyond <= 2 << 20);
}

static void test_return_tells_of_seized_stacks(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    unsigned cls = pm_size_to_class(64);
    give(t, cls, take(t, cls));
    uint64_t n = t->stack[cls].n;
    CHECK(pm_stack_seize(&t->stack[cls])); // as a request that a handler interrupts
    CHECK(!pm_tcache_return(t));
    pm_stack_leave(&t->stack[cls]);
    CHECK(n > 0 && pm_tcache_held(cls) == n);
    CHECK(pm_tcache_return(t));
    CHECK_EQ(pm_tcache_held(cls), 0);
}

static void test_an_idle_stack_shrinks(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    unsigned cls = pm_size_to_class(64), other = pm_size_to_class(16384);
    for (unsigned round = 0; round < 16; round++)
        take_and_give(t, cls, 2000);
    CHECK(t->stack[cls].n > pm_classes[cls].tcache_cap);
    for (unsigned round = 0; round < 100; round++)
        take_and_give(t, other, 400);
    CHECK_EQ(t->stack[cls].cap, pm_classes[cls].tcache_cap);
    CHECK_EQ(t->stack[cls].n, pm_classes[cls].tcache_cap);
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
            CHECK(t->stack[cls].n <= 2 * pm_classes[cls].tcache_cap); // it ran empty once
        }
        CHECK_EQ(pm_tcache_held(cls), t->stack[cls].n);
    }
    // Trimming returns the older half, so the block freed last still leaves first.
    CHECK(pm_tcache_pop(t, 36) == blocks[1999]);
}

static void test_return_and_destroy_empty_the_cache(void) {
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
    for (unsigned i = 0; i < 5000; i++) // every other block goes to the other cache
        give(rnd(2) ? a : b, classes[i], blocks[i]);
    pm_tcache_return(a);
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
    CHECK_EQ(s.slab_bytes, slabs * PM_SLAB_SIZE);
    CHECK_EQ(pm_extent_stats().active, slabs);
    CHECK_EQ(pm_arenas_drop_empty(), slabs);
    CHECK_EQ(pm_extent_stats().active, 0);
    for (uint64_t g = 0; g < pm_heap.shard[0].frontier >> PM_GRANULE_SHIFT; g++)
        if (pm_tag[g]) {
            CHECK_EQ(pm_tag[g], 0);
            break;
        }
    struct pm_tcache *again = pm_tcache_create(); // uses the spare cache
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

// A fork copies the cache of a thread that was inside pm_tcache_trim(). The blocks it had returned
// are handed out anew, and must not be returned twice.
static void test_an_orphan_within_a_trim(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    void *got[400], *p = take(other, 9);
    CHECK(pm_tcache_push(other, p));
    mine->arena = other->arena;
    CHECK(pm_stack_seize(&other->stack[10]));
    pm_arena_return(10, other->slot[10], other->stack[10].n / 2);
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

// ---- nodes --------------------------------------------------------------------------------------

static void two_nodes(void) {
    pm_options_default();
    pm_nodes = (struct pm_nodes){.count = 2, .cores_of = {2, 2}, .injected = true};
    fixture_new_heap();
    pm_node_move(0);
}

static bool cached(const struct pm_tcache *t) {
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        if (pm_stack_count(&t->stack[cls]))
            return true;
    return false;
}

static void test_a_thread_moves_to_another_node(void) {
    two_nodes();
    struct pm_tcache *first = pm_tcache = pm_tcache_create();
    CHECK(first->node == 0 && first->arena->node == 0);
    void *p = pm_alloc_small(10);
    MUST(p && cached(first));
    pm_node_move(1);
    while (pm_tcache == first)
        MUST(pm_alloc_small(24)); // a class that has to be refilled
    struct pm_tcache *second = pm_tcache;
    CHECK(second->node == 1 && second->arena->node == 1 && first->parked);
    CHECK(!cached(first) && cached(second));
    CHECK_EQ(first->arena->threads, 0);
    CHECK_EQ(second->arena->threads, 1);
    CHECK_EQ(pm_tcache_live(), 1);
    CHECK_EQ(pm_tcache_moves, 1);
    pm_node_move(0);
    CHECK(pm_tcache_follow(pm_tcache) == first);
    CHECK(!first->parked && second->parked && !cached(second));
    CHECK_EQ(first->arena->threads, 1);
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(first);
    CHECK_EQ(pm_tcache_live(), 0);
    for (unsigned i = 0; i < pm_arena_count; i++)
        CHECK_EQ(pm_arenas[i].threads, 0);
    struct pm_tcache *a = pm_tcache_create(), *b = pm_tcache_create();
    CHECK((a == first && b == second) || (a == second && b == first));
    CHECK(a->sibling == a && b->sibling == b);
}

// A block that a signal handler could not free at once moves along.
static void test_deferred_frees_move_along(void) {
    two_nodes();
    struct pm_tcache *t = pm_tcache = pm_tcache_create();
    void *p = pm_alloc_small(10);
    t->deferred[t->deferred_count++] = p;
    pm_node_move(1);
    struct pm_tcache *to = pm_tcache_follow(t);
    CHECK(to != t && t->deferred_count == 0);
    CHECK(to->deferred_count == 1 && to->deferred[0] == p);
}

// The child of a fork keeps one cache of its thread; those of other nodes become spare.
static void test_siblings_in_a_fork(void) {
    two_nodes();
    struct pm_tcache *first = pm_tcache = pm_tcache_create();
    pm_node_move(1);
    struct pm_tcache *second = pm_tcache_follow(first);
    MUST(second != first);
    pm_tcache_orphans(second);
    CHECK(second->sibling == second);
    CHECK_EQ(pm_tcache_live(), 1);
    CHECK(pm_tcache_create() == first);
}

static void test_out_of_memory(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "4M", &err) == PM_OK);
    fixture_new_heap();
    struct pm_tcache *t = pm_tcache_create();
    unsigned got = 0;
    while (take(t, 24))
        got++;
    CHECK_EQ(got, 64 * pm_classes[24].blocks);
    CHECK(!pm_tcache_refill(t, 24));
}

int main(void) {
    RUN_CHILD(blocks_leave_by_rising_address);
    RUN_CHILD(last_in_first_out);
    RUN_CHILD(push_refuses);
    RUN_CHILD(a_seized_stack_is_nobody_elses);
    RUN_CHILD(a_stack_grows_to_the_batch);
    RUN_CHILD(what_stacks_grow_is_bounded);
    RUN_CHILD(an_idle_stack_shrinks);
    RUN_CHILD(return_tells_of_seized_stacks);
    RUN_CHILD(bounded);
    RUN_CHILD(return_and_destroy_empty_the_cache);
    RUN_CHILD(orphans_of_a_fork);
    RUN_CHILD(an_orphan_within_a_trim);
    RUN_CHILD(a_thread_moves_to_another_node);
    RUN_CHILD(deferred_frees_move_along);
    RUN_CHILD(siblings_in_a_fork);
    RUN_CHILD(out_of_memory);
    return CHECK_DONE();
}

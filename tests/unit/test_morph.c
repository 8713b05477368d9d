// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Slab morphing: a slab before, during and after it, to smaller and larger classes; which slab is
// chosen; caches and threads.
#include <pthread.h>

#include "blocks/tcache.h"
#include "morph_fixture.h"
#include "process/entry.h"

// ---- one slab -----------------------------------------------------------------------------------

static void *blocks[PM_SLAB_BLOCKS_MAX], *fresh[PM_SLAB_BLOCKS_MAX];

// Makes a slab in which `keep` blocks, spread at random, are handed out: blocks[0 .. keep). The
// rest is free.
static uint32_t sparse_slab(unsigned cls, unsigned keep) {
    uint32_t slab = pm_slab_create(cls, 0, 0) - 1;
    unsigned all = pm_slab_pop(slab, blocks, PM_SLAB_BLOCKS_MAX);
    for (unsigned i = 0; i + 1 < all; i++) {
        unsigned j = i + (unsigned)rnd(all - i);
        void *t = blocks[i];
        blocks[i] = blocks[j], blocks[j] = t;
    }
    for (unsigned i = keep; i < all; i++)
        pm_slab_push(slab, blocks[i]);
    return slab;
}

static void fill_with(char *p, unsigned cls, unsigned value) {
    memset(p, (int)value, pm_classes[cls].size);
}

static bool is_filled(const char *p, unsigned cls, unsigned value) {
    for (size_t i = 0; i < pm_classes[cls].size; i++)
        if (p[i] != (char)value)
            return false;
    return true;
}

// Takes every block of class `cls` that the slab can give. None may share a byte with an old block;
// these are the first `old` of blocks[].
static unsigned take_all(uint32_t slab, unsigned cls, unsigned old, unsigned old_class) {
    unsigned got = pm_slab_pop(slab, fresh, PM_SLAB_BLOCKS_MAX);
    for (unsigned i = 0; i < got; i++) {
        for (unsigned k = 0; k < pm_classes[cls].size; k++)
            CHECK_EQ(((char *)fresh[i])[k], 0); // no byte of an earlier use
        fill_with(fresh[i], cls, 1);
    }
    for (unsigned i = 0; i < old; i++)
        CHECK(is_filled(blocks[i], old_class, 2 + i % 100));
    return got;
}

// For a pair of classes: morph, take all new blocks, give the old blocks back one at a time, take
// what becomes free.
static void pass_through(unsigned from, unsigned to, unsigned keep) {
    uint32_t slab = sparse_slab(from, keep);
    struct pm_vslab *v = &pm_vslabs[slab];
    for (unsigned i = 0; i < keep; i++)
        fill_with(blocks[i], from, 2 + i % 100);
    if (!pm_morph(slab, 0, to)) { // too many of the new blocks would be blocked
        CHECK(v->size_class == from && v->old_class == 0);
        CHECK(keep > 0);
        for (unsigned i = 0; i < keep; i++)
            pm_slab_push(slab, blocks[i]);
        pm_slab_destroy(slab);
        return;
    }
    CHECK_EQ(v->size_class, to);
    CHECK_EQ(v->old_class, keep ? from : 0);
    CHECK(v->old_live == keep && v->old_listed == keep);
    uint32_t line;
    CHECK_EQ(pm_slab_media_class(slab, &line), to);
    CHECK_EQ(line != 0, keep != 0);
    unsigned got = take_all(slab, to, keep, from), all = pm_classes[to].blocks;
    CHECK_EQ(got + v->blocked, all);
    for (unsigned i = 0; i < keep; i++) {
        CHECK(is_filled(blocks[i], from, 2 + i % 100));
        pm_morph_free(slab, blocks[i]);
        // not before the freed old block has left the index table
        CHECK_EQ(pm_slab_pop(slab, fresh + got, 1), 0);
        pm_morph_sync(slab);
        got += pm_slab_pop(slab, fresh + got, PM_SLAB_BLOCKS_MAX);
        CHECK_EQ(got + v->blocked, all);
    }
    CHECK_EQ(got, all);
    CHECK(v->old_class == 0 && v->blocked == 0);
    CHECK_EQ(pm_slab_media_class(slab, &line), to);
    CHECK_EQ(line, 0);
    for (unsigned i = 0; i < got; i++)
        pm_slab_push(slab, fresh[i]);
    CHECK(pm_slab_is_empty(v));
    pm_slab_destroy(slab);
}

static void test_every_pair_of_classes(void) {
    start();
    for (unsigned from = 1; from <= PM_CLASSES; from++)
        for (unsigned to = 1; to <= PM_CLASSES; to++)
            if (to != from) {
                unsigned many = pm_classes[from].blocks / 5;
                pass_through(from, to, 0);
                pass_through(from, to, many < 3 ? many : 1 + (unsigned)rnd(3));
                if ((from + to) % 3 == 0)
                    pass_through(from, to, many);
            }
    CHECK_EQ(pm_extent_stats().slab_pages, 0);
    CHECK(pm_heap.shard[0].morph.size <= 4 * PM_PAGE_SIZE); // space of index tables is used again
}

// Which block each byte of the slab belongs to, against the rule written out here.
static void test_find(void) {
    start();
    unsigned from = 10, to = 18, keep = 30;
    uint32_t slab = sparse_slab(from, keep);
    pm_morphs_wait = true; // somebody looks up blocks beside the program
    MUST(!pm_morph(slab, 0, to));
    pm_morphs_wait = false;
    MUST(pm_morph(slab, 0, to));
    const struct pm_vslab *v = &pm_vslabs[slab];
    static unsigned char owner[PM_SLAB_SIZE]; // 1: an old block
    for (unsigned i = 0; i < keep; i++)
        memset(owner + ((char *)blocks[i] - pm_slab_start(slab)), 1, pm_classes[from].size);
    for (uint32_t at = 0; at < PM_SLAB_SIZE; at++) {
        struct pm_slab_block b;
        bool found = pm_slab_find(v, at, &b);
        unsigned size = pm_classes[to].size, index = at / size;
        bool blocked = index >= pm_classes[to].blocks;
        for (unsigned i = index * size; !blocked && i < (index + 1) * size; i++)
            blocked |= owner[i];
        if (owner[at])
            CHECK(found && b.old && b.cls == from && b.index == at / pm_classes[from].size);
        else
            CHECK(blocked ? !found : found && !b.old && b.cls == to && b.index == index);
    }
}

// Freed old blocks stay listed until enough of them have been freed.
static void test_due(void) {
    start();
    uint32_t slab = sparse_slab(10, 80);
    struct pm_vslab *v = &pm_vslabs[slab];
    MUST(pm_morph(slab, 0, 12));
    uint64_t before[PM_BITMAP_WORDS], after[PM_BITMAP_WORDS];
    struct pm_error err;
    unsigned old;
    CHECK_EQ(pm_morph_media_read(v->media_line, slab, 12, &old, before, &err), PM_OK);
    for (unsigned i = 0; i < 9; i++) {
        CHECK(!pm_morph_is_due(v));
        pm_morph_free(slab, blocks[i]);
    }
    CHECK(!pm_morph_is_due(v));
    pm_morph_free(slab, blocks[9]);
    CHECK(pm_morph_is_due(v));
    CHECK_EQ(pm_morph_media_read(v->media_line, slab, 12, &old, after, &err), PM_OK);
    CHECK(memcmp(before, after, pm_slab_words(10) * 8) == 0);
    pm_morph_sync(slab);
    CHECK(!pm_morph_is_due(v) && v->old_listed == 70 && v->old_live == 70);
    CHECK_EQ(pm_morph_media_read(v->media_line, slab, 12, &old, after, &err), PM_OK);
    CHECK(old == 10 && memcmp(after, pm_old_live(v), pm_slab_words(10) * 8) == 0);
}

// ---- which slab is chosen -----------------------------------------------------------------------

static void test_the_longest_unused_first(void) {
    start();
    sparse_slabs(24, 5, 3); // 64 blocks each
    uint32_t number[5];
    for (unsigned s = 0; s < 5; s++)
        number[s] = pm_slab_of(kept[s][0]);
    good();
    pm_arena_return(24, kept[0], 1); // so the first slab was used last
    void *p[4];
    MUST(take(21, p, 1) == 1);
    CHECK_EQ(pm_slab_of(p[0]), number[1]);
    MUST(take(22, p + 1, 1) == 1);
    CHECK_EQ(pm_slab_of(p[1]), number[2]);
    good();
    CHECK_EQ(pm_arenas[0].bin[24].slabs, 3);
    CHECK_EQ(pm_arenas[0].bin[24].lodged_elsewhere, 6);
    MUST(take(23, p + 2, 1) == 1);
    MUST(take(20, p + 3, 1) == 1);
    CHECK_EQ(pm_arenas[0].bin[24].slabs, 1); // one slab stays in the bin
    uint64_t pages = pm_extent_stats().slab_pages;
    MUST(take(19, p, 1) == 1);
    CHECK_EQ(pm_extent_stats().slab_pages, pages + 16);
    good();
}

static void test_not_above_the_threshold(void) {
    start();
    sparse_slabs(24, 4, 26); // 26 of 64 blocks are more than 40%
    void *p;
    uint64_t pages = pm_extent_stats().slab_pages;
    MUST(take(21, &p, 1) == 1);
    CHECK_EQ(pm_extent_stats().slab_pages, pages + 16);
    for (unsigned s = 0; s < 4; s++)
        pm_arena_return(24, kept[s] + 25, 1); // 25 of 64 are less
    MUST(take(20, &p, 1) == 1);
    CHECK_EQ(pm_extent_stats().slab_pages, pages + 16);
    CHECK_EQ(pm_arenas[0].bin[24].slabs, 3);
    good();
}

static void test_never_when_off(void) {
    pm_options_default();
    pm_options.morph.number = 0;
    fixture_new_heap();
    sparse_slabs(24, 6, 2);
    void *p;
    MUST(take(21, &p, 1) == 1);
    CHECK_EQ(pm_arenas[0].bin[24].slabs, 6);
    CHECK_EQ(pm_morph_counters.begun, 0);
    good();
}

// An empty slab that a bin keeps changes its class without an index table.
static void test_empty_slab(void) {
    start();
    for (unsigned i = 0; i < 2; i++)
        MUST(take(24, kept[i], 64) == 64);
    uint32_t slab = pm_slab_of(kept[0][0]);
    pm_arena_return(24, kept[0], 64);
    pm_arena_return(24, kept[1], 63);
    CHECK_EQ(pm_arenas[0].bin[24].empty, 1);
    good();
    void *p;
    MUST(take(22, &p, 1) == 1);
    good();
    CHECK_EQ(pm_slab_of(p), slab);
    CHECK_EQ(pm_arenas[0].bin[24].empty, 0);
    CHECK_EQ(pm_vslabs[slab].old_class, 0);
    uint32_t line;
    CHECK_EQ(pm_slab_media_class(slab, &line), 22);
    CHECK_EQ(line, 0);
}

// ---- arenas and caches --------------------------------------------------------------------------

static void test_blocks_return_to_a_morphed_slab(void) {
    start();
    sparse_slabs(24, 2, 5);
    void *p[102], *q[102];
    MUST(take(21, p, 60) == 60);
    uint32_t slab = pm_slab_of(p[0]);
    struct pm_vslab *v = &pm_vslabs[slab];
    CHECK(v->size_class == 21 && v->old_class == 24 && v->old_live == 5);
    unsigned which = pm_slab_of(kept[0][0]) == slab ? 0 : 1;
    good();
    pm_arena_return(24, kept[which], 4); // blocks of class 24 in a slab of class 21
    CHECK_EQ(v->old_live, 1);
    good();
    unsigned left = v->free_count;
    CHECK_EQ(take(21, q, left), left);
    CHECK(v->free_count == 0 && v->listed && v->old_listed == 5);
    CHECK(pm_arena_fill(&pm_arenas[0], 21, q + left, 1) == 1 && pm_slab_of(q[left]) == slab);
    CHECK_EQ(v->old_listed, 1);
    good();
    pm_arena_return(21, p, 60);
    pm_arena_return(21, q, left + 1);
    CHECK_EQ(v->size_class, 21); // one old block keeps the slab from going back
    good();
    uint64_t pages = pm_extent_stats().slab_pages;
    pm_arena_return(24, kept[which] + 4, 1);
    CHECK(v->old_class == 0 && pm_slab_is_empty(v));
    CHECK_EQ(pm_extent_stats().slab_pages, pages); // kept: a bin may keep one empty slab
    CHECK_EQ(pm_arenas[0].bin[24].lodged_elsewhere, 0);
    good();
}

// Blocks in a thread cache count as in use. In a slab that morphs they are old blocks: they may be
// handed out again, and return as old blocks.
static void test_cached_blocks(void) {
    start();
    struct pm_tcache *t = pm_tcache_create();
    MUST(t && t->arena == &pm_arenas[0]);
    pm_tcache = t;
    sparse_slabs(24, 2, 6);
    for (unsigned i = 0; i < 12; i++) {
        void *b = kept[i / 6][i % 6];
        *pm_tag_at(b) = 24; // as malloc tags the blocks it hands out
        CHECK(pm_tcache_push(t, b));
    }
    void *p[4];
    MUST(take(21, p, 4) == 4);
    struct pm_vslab *v = &pm_vslabs[pm_slab_of(p[0])];
    CHECK(v->old_class == 24 && v->old_live == 6);
    unsigned inside = 0;
    for (unsigned i = 0; i < 12; i++) {
        char *b = pm_tcache_pop(t, 24);
        CHECK_EQ(*pm_tag_at(b), 24);
        memset(b, 77, 1024);
        inside += &pm_vslabs[pm_slab_of(b)] == v;
        for (unsigned k = 0; k < 4; k++)
            CHECK(b + 1024 <= (char *)p[k] || b >= (char *)p[k] + 640);
        kept[2][i] = b;
    }
    CHECK_EQ(inside, 6);
    for (unsigned i = 0; i < 12; i++)
        CHECK(pm_tcache_push(t, kept[2][i]));
    CHECK_EQ(v->old_live, 6);
    good();
    pm_tcache_return(t);
    CHECK_EQ(v->old_class, 0);
    good();
}

// ---- threads ------------------------------------------------------------------------------------

#define WORKERS 3
#define MINE 1500
static void *shared[WORKERS * MINE];
static _Atomic unsigned wrong;

static uint64_t step(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static unsigned char mark_of(const void *p) { return (unsigned char)((uintptr_t)p >> 4 | 1); }

// Sizes change all the time, and most blocks are freed by another thread than the one that took
// them.
static void *worker(void *arg) {
    uint64_t state = (uintptr_t)arg * 7919 + 1;
    static const unsigned sizes[] = {40, 100, 130, 300, 1000, 2000};
    for (unsigned round = 0; round < 24; round++) {
        unsigned size = sizes[(round + (uintptr_t)arg) % 6];
        for (unsigned i = 0; i < 3000; i++) {
            void **slot = &shared[step(&state) % (WORKERS * MINE)];
            void *fill = NULL;
            if (step(&state) % 100 < (round % 2 ? 70 : 12)) {
                unsigned char *p = pm_malloc(size + step(&state) % 8);
                memset(p, mark_of(p), size);
                p[size - 1] = mark_of(p);
                fill = p;
            }
            unsigned char *old = __atomic_exchange_n(slot, fill, __ATOMIC_ACQ_REL);
            if (old) {
                size_t usable = pm_usable_size(old);
                for (size_t k = 0; k < 40; k++)
                    wrong += old[k] != mark_of(old);
                wrong += usable < 40;
                pm_free(old);
            }
        }
    }
    return NULL;
}

static void test_threads(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_MORPH", "60", 1);
    pthread_t thread[WORKERS];
    pm_free(pm_malloc(10));
    for (uintptr_t i = 0; i < WORKERS; i++)
        MUST(pthread_create(&thread[i], NULL, worker, (void *)i) == 0);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(wrong, 0);
    CHECK(pm_morph_counters.begun > 20);
    good();
    for (unsigned i = 0; i < WORKERS * MINE; i++)
        pm_free(shared[i]);
    pm_trim();
    good();
    unsigned lodged_elsewhere = 0;
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            lodged_elsewhere += pm_arenas[a].bin[cls].lodged_elsewhere;
    CHECK_EQ(lodged_elsewhere, 0);
}

int main(void) {
    RUN_CHILD(every_pair_of_classes);
    RUN_CHILD(find);
    RUN_CHILD(due);
    RUN_CHILD(the_longest_unused_first);
    RUN_CHILD(not_above_the_threshold);
    RUN_CHILD(never_when_off);
    RUN_CHILD(empty_slab);
    RUN_CHILD(blocks_return_to_a_morphed_slab);
    RUN_CHILD(cached_blocks);
    RUN_CHILD(threads);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Heaps with slabs that hold blocks of two classes, opened again: recovered, trusted, damaged; and heaps from before
// there were any.
#include "alloc.h"
#include "bitmaps.h"
#include "crc.h"
#include "morph_fixture.h"
#include "recover.h"

// ---- opening again -----------------------------------------------------------------------------------

static uint32_t morphed_slab;

// A heap with one morphed slab: five old blocks and three new ones in a list that slot 0 names, the old ones first.
static void make_morphed(void) {
    start();
    sparse_slabs(20, 2, 5);
    void *p[3];
    MUST(take(17, p, 3) == 3);
    morphed_slab = pm_slab_of(p[0]);
    unsigned which = pm_slab_of(kept[0][0]) == morphed_slab ? 0 : 1;
    void **last = NULL;
    for (unsigned i = 0; i < 8; i++) {
        void **b = i < 3 ? p[i] : kept[which][i - 3];
        memset(b, 0, i < 3 ? 640 : 1024);
        b[1] = last;
        last = b;
    }
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)(last + 9)); // inside
}

static void close_it(void) {
    MUST(pm_bitmaps_write());
    pm_heap_release();
}

static int reopen(struct pm_recovery *r, struct pm_error *err) {
    pm_options_default();
    int status = pm_offline_open(fixture_dir, PM_OPEN_EXISTING, err);
    return status == PM_OK ? pm_recover(true, 1, r, err) : status;
}

static void make_and_close(void) {
    make_morphed();
    close_it();
}

static void test_recovery(void) {
    CHECK_EQ(in_child(make_and_close), 0);
    struct pm_recovery r;
    struct pm_error err;
    CHECK_EQ(reopen(&r, &err), PM_OK);
    CHECK_EQ(r.live_objects, 8);
    CHECK_EQ(r.live_bytes, 5 * 1024 + 3 * 640);
    CHECK_EQ(r.morphing, 1);
    CHECK_EQ(r.slabs, 1);
    good();
    void **p = (void **)(uintptr_t)pm_heap_slot(0) - 9;
    uint32_t slab = pm_slab_of(p);
    const struct pm_vslab *v = &pm_vslabs[slab];
    CHECK(v->size_class == 17 && v->old_class == 20 && v->old_live == 5 && v->stale_tags);
    for (unsigned i = 0; p; i++, p = p[1]) {
        CHECK_EQ(pm_usable_size(p), i < 5 ? 1024 : 640);
        if (i == 0)
            CHECK(!v->stale_tags);
    }
    good();
    CHECK(pm_offline_finish());
}

static void test_read_only(void) {
    CHECK_EQ(in_child(make_and_close), 0);
    struct pm_recovery r;
    struct pm_error err;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_READONLY, &err) == PM_OK);
    CHECK_EQ(pm_recover(false, 1, &r, &err), PM_OK);
    CHECK(r.live_objects == 8 && r.morphing == 1);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
}

// Only the new blocks are reachable: the slab is slab_after at once. Only the first three old ones: they are left.
static void cut_list(void) {
    make_morphed();
    void **p = (void **)(uintptr_t)pm_heap_slot(0) - 9;
    for (unsigned i = 0; i < 5; i++)
        p = p[1];
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)p);
    close_it();
}

static void cut_tail(void) {
    make_morphed();
    void **p = (void **)(uintptr_t)pm_heap_slot(0) - 9;
    ((void **)((void **)p[1])[1])[1] = NULL;
    close_it();
}

static void test_recovery_ends_a_morph(void) {
    CHECK_EQ(in_child(cut_list), 0);
    struct pm_recovery r;
    struct pm_error err;
    CHECK_EQ(reopen(&r, &err), PM_OK);
    CHECK_EQ(r.live_objects, 3);
    CHECK_EQ(r.morphing, 0);
    good();
    CHECK_EQ(pm_vslabs[pm_slab_of((void *)(uintptr_t)pm_heap_slot(0))].old_class, 0);
}

static void test_recovery_shortens_a_table(void) {
    CHECK_EQ(in_child(cut_tail), 0);
    struct pm_recovery r;
    struct pm_error err;
    CHECK_EQ(reopen(&r, &err), PM_OK);
    CHECK_EQ(r.live_objects, 3);
    CHECK_EQ(r.morphing, 1);
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of((void *)(uintptr_t)pm_heap_slot(0))];
    CHECK(v->old_live == 3 && v->old_listed == 3);
    good();
}

// PMALLOC_COLLECT=crash: the bitmaps of both classes stand in for marking.
static void close_cleanly(void) {
    struct pm_recovery r;
    struct pm_error err;
    MUST(reopen(&r, &err) == PM_OK && pm_offline_finish());
}

static void test_trusted_bitmaps(void) {
    CHECK_EQ(in_child(make_and_close), 0);
    CHECK_EQ(in_child(close_cleanly), 0);
    struct pm_recovery r;
    struct pm_error err;
    pm_options_default();
    pm_options.collect.number = PM_COLLECT_CRASH;
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(pm_recover(true, 1, &r, &err), PM_OK);
    CHECK(!r.marked && r.live_objects == 8 && r.morphing == 1);
    CHECK_EQ(r.live_bytes, 5 * 1024 + 3 * 640);
    good();
}

// ---- damage ------------------------------------------------------------------------------------------

static int adopt_again(struct pm_error *err) {
    uint32_t extent = pm_vslabs[morphed_slab].extent, line;
    MUST(pm_slab_media_class(morphed_slab, &line) == 17);
    pm_index_give(line, 20);
    struct pm_vslab was = pm_vslabs[morphed_slab];
    int status = pm_slab_adopt(morphed_slab, extent, err);
    if (status != PM_OK) { // what it took before it failed
        pm_vslabs[morphed_slab] = was;
        pm_index_give(line, 20);
        pm_index_claim(line, 20);
    }
    return status;
}

static void test_damaged_tables(void) {
    make_morphed();
    struct pm_error err = {0};
    CHECK_EQ(adopt_again(&err), PM_OK);
    uint32_t line = pm_vslabs[morphed_slab].table;
    uint8_t *table = (uint8_t *)pm_heap.morph.map + line * PM_MORPH_LINE;
    size_t size = 16 + 2 * 8; // 64 blocks
    for (size_t bit = 0; bit < size * 8; bit++) {
        table[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(adopt_again(&err), PM_DAMAGE);
        CHECK_HAS(err.text, "morph.0");
        table[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK_EQ(adopt_again(&err), PM_OK);
    uint64_t *word = (uint64_t *)(void *)(table + 16), was = word[0], second = word[1];
    word[0] = word[1] = pm_seal(0, PM_SALT_MORPH(morphed_slab, 0));
    word[1] = pm_seal(0, PM_SALT_MORPH(morphed_slab, 1));
    CHECK_EQ(adopt_again(&err), PM_DAMAGE); // lists nothing
    CHECK_HAS(err.text, "lists 0 blocks");
    word[0] = pm_seal(~0u, PM_SALT_MORPH(morphed_slab, 0)); // more than there were
    CHECK_EQ(adopt_again(&err), PM_DAMAGE);
    word[0] = was, word[1] = second;
    size_t length = pm_heap.morph.size;
    pm_heap.morph.size = line * PM_MORPH_LINE;
    CHECK_EQ(adopt_again(&err), PM_DAMAGE);
    CHECK_HAS(err.text, "truncated");
    pm_heap.morph.size = length;
    // two slabs that name one table
    MUST(pm_slab_create(17, 0));
    pm_index_claim(line, 20);
    CHECK_EQ(pm_slab_adopt(morphed_slab, pm_vslabs[morphed_slab].extent, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "overlaps another's");
    uint64_t now = media(morphed_slab)->now;
    media(morphed_slab)->now ^= 1ull << 26;
    CHECK_EQ(pm_slab_adopt(morphed_slab, 1, &err), PM_DAMAGE);
    media(morphed_slab)->now = now;
}

// A heap from before there was morphing opens and works; its slabs stay what they are.
static void make_old_heap(void) {
    start();
    void *p[10];
    MUST(take(20, p, 10) == 10);
    memset(p[0], 0, 1024);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)p[0]);
    media(pm_slab_of(p[0]))->now = 0;
    struct pm_superblock *super = &pm_heap.super->super;
    super->incompat = 0;
    super->crc = pm_crc32c(0, super, offsetof(struct pm_superblock, crc));
    MUST(unlinkat(pm_heap.dir_fd, "morph.0", 0) == 0);
}

static void test_heap_without_morphing(void) {
    CHECK_EQ(in_child(make_old_heap), 0);
    struct pm_recovery r;
    struct pm_error err = {0};
    pm_options_default();
    pm_options.morph.number = PERCENT;
    CHECK_EQ(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err), PM_OK);
    CHECK_EQ(pm_recover(true, 1, &r, &err), PM_OK);
    CHECK_STR(err.text, "");
    CHECK_EQ(r.live_objects, 1);
    sparse_slabs(20, 4, 2);
    void *p;
    MUST(take(17, &p, 1) == 1);
    CHECK_EQ(media(pm_slab_of(p))->now, 0);
    CHECK_EQ(pm_morph_counters.begun, 0);
    good();
    CHECK(pm_offline_finish());
}

int main(void) {
    RUN_CHILD(recovery);
    RUN_CHILD(read_only);
    RUN_CHILD(recovery_ends_a_morph);
    RUN_CHILD(recovery_shortens_a_table);
    RUN_CHILD(trusted_bitmaps);
    RUN_CHILD(damaged_tables);
    RUN_CHILD(heap_without_morphing);
    return CHECK_DONE();
}

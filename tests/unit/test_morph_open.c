// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Heaps with slabs that hold blocks of two classes are opened again: after a kill, with bitmaps
// instead of marking, and damaged. Also heaps from before slabs could morph.
#include "base/crc.h"
#include "blocks/bitmaps.h"
#include "media/open/heap_open.h"
#include "morph_fixture.h"
#include "process/entry.h"
#include "recovery/close.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

// ---- opening again ------------------------------------------------------------------------------

static uint32_t morphed_slab;

// Makes a heap with one morphed slab. Root slot 0 names a list of five old blocks and then three
// new ones.
static void make_morphed(void) {
    start();
    sparse_slabs(24, 2, 5);
    void *p[3];
    MUST(take(21, p, 3) == 3);
    morphed_slab = pm_slab_of(p[0]);
    unsigned which = pm_slab_of(kept[0][0]) == morphed_slab ? 0 : 1;
    void **last = NULL;
    for (unsigned i = 0; i < 8; i++) {
        void **b = i < 3 ? p[i] : kept[which][i - 3];
        memset(b, 0, i < 3 ? 640 : 1024);
        b[1] = last;
        last = b;
    }
    // points into the block, not at its start
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)(last + 9));
}

static const struct pm_recover_options look_only = {.mark.markers = 1};
static const struct pm_recover_options write_it = {.write = true, .mark.markers = 1};

static void close_it(void) {
    MUST(pm_bitmaps_write());
    pm_heap_release();
}

static int reopen(struct pm_recovery *r, struct pm_error *err) {
    pm_options_default();
    int status = pm_offline_open(fixture_dir, PM_OPEN_EXISTING, err);
    return status == PM_OK ? pm_recover(&write_it, r, err) : status;
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
    CHECK(v->size_class == 21 && v->old_class == 24 && v->old_live == 5 && v->untagged);
    for (unsigned i = 0; p; i++, p = p[1]) {
        CHECK_EQ(pm_usable_size(p), i < 5 ? 1024 : 640);
        if (i == 0)
            CHECK(!v->untagged);
    }
    good();
    CHECK(pm_close());
}

static void test_read_only(void) {
    CHECK_EQ(in_child(make_and_close), 0);
    struct pm_recovery r;
    struct pm_error err;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_READONLY, &err) == PM_OK);
    CHECK_EQ(pm_recover(&look_only, &r, &err), PM_OK);
    CHECK(r.live_objects == 8 && r.morphing == 1);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
}

// Cuts the list so that only new blocks or only the first three old blocks are reachable.
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

// For PMALLOC_COLLECT=crash: the bitmaps of both populations stand in for marking.
static void close_cleanly(void) {
    struct pm_recovery r;
    struct pm_error err;
    MUST(reopen(&r, &err) == PM_OK && pm_close());
}

static void test_trusted_bitmaps(void) {
    CHECK_EQ(in_child(make_and_close), 0);
    CHECK_EQ(in_child(close_cleanly), 0);
    struct pm_recovery r;
    struct pm_error err;
    pm_options_default();
    pm_options.collect.number = PM_COLLECT_CRASH;
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(pm_recover(&write_it, &r, &err), PM_OK);
    CHECK(!r.marked && r.live_objects == 8 && r.morphing == 1);
    CHECK_EQ(r.live_bytes, 5 * 1024 + 3 * 640);
    good();
}

// ---- damage -------------------------------------------------------------------------------------

static int adopt(uint32_t extent, struct pm_error *err) {
    int status = pm_slab_adopt(morphed_slab, extent, err);
    return status == PM_OK ? pm_morph_adopt(morphed_slab, err) : status;
}

static int adopt_again(struct pm_error *err) {
    uint32_t extent = pm_vslabs[morphed_slab].extent, line;
    MUST(pm_slab_media_class(morphed_slab, &line) == 21);
    pm_morph_media_give(line, morphed_slab, 24);
    struct pm_vslab was = pm_vslabs[morphed_slab];
    int status = adopt(extent, err);
    if (status != PM_OK) { // undo what it did before it failed
        pm_vslabs[morphed_slab] = was;
        pm_morph_media_give(line, morphed_slab, 24);
        pm_morph_media_claim(line, morphed_slab, 24);
    }
    return status;
}

static void test_damaged_tables(void) {
    make_morphed();
    struct pm_error err = {0};
    CHECK_EQ(adopt_again(&err), PM_OK);
    uint32_t line = pm_vslabs[morphed_slab].media_line;
    uint8_t *table = (uint8_t *)pm_heap.shard[0].morph.map + line * PM_MORPH_LINE;
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
    CHECK_EQ(adopt_again(&err), PM_DAMAGE); // an index table that lists no block
    CHECK_HAS(err.text, "lists 0 blocks");
    word[0] = pm_seal(~0u, PM_SALT_MORPH(morphed_slab, 0)); // more blocks than the slab had
    CHECK_EQ(adopt_again(&err), PM_DAMAGE);
    word[0] = was, word[1] = second;
    size_t length = pm_heap.shard[0].morph.size;
    pm_heap.shard[0].morph.size = line * PM_MORPH_LINE;
    CHECK_EQ(adopt_again(&err), PM_DAMAGE);
    CHECK_HAS(err.text, "truncated");
    pm_heap.shard[0].morph.size = length;
    // two slabs that name one index table
    MUST(pm_slab_create(21, 0, 0));
    pm_morph_media_claim(line, morphed_slab, 24);
    CHECK_EQ(adopt(pm_vslabs[morphed_slab].extent, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "overlaps another's");
    uint64_t now = media(morphed_slab)->current;
    media(morphed_slab)->current ^= 1ull << 26;
    CHECK_EQ(adopt(1, &err), PM_DAMAGE);
    media(morphed_slab)->current = now;
}

int main(void) {
    RUN_CHILD(recovery);
    RUN_CHILD(read_only);
    RUN_CHILD(recovery_ends_a_morph);
    RUN_CHILD(recovery_shortens_a_table);
    RUN_CHILD(trusted_bitmaps);
    RUN_CHILD(damaged_tables);
    return CHECK_DONE();
}

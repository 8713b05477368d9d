// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The size classes that were added after the first 36, in heaps from before and in new ones.
#include "base/crc.h"
#include "media/feature.h"
#include "morph_fixture.h"
#include "process/entry.h"
#include "recovery/close.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

enum { FIRST_ADDED = PM_CLASSES_FIRST + 1 };

static struct pm_superblock *super(void) { return &pm_heap.super->super; }

static bool has_bit(void) { return (super()->incompat & PM_INCOMPAT_CLASSES) != 0; }

// The superblock that an older build has made.
static void without_bit(void) {
    super()->incompat &= ~PM_INCOMPAT_CLASSES;
    super()->crc = pm_crc32c(0, super(), offsetof(struct pm_superblock, crc));
}

static void start_old(void) {
    start();
    without_bit();
}

static int reopen(struct pm_recovery *r, struct pm_error *err) {
    static const struct pm_recover_options how = {.write = true, .mark.markers = 1};
    pm_options_default();
    pm_options.morph.number = PERCENT;
    int status = pm_offline_open(fixture_dir, PM_OPEN_EXISTING, err);
    return status == PM_OK ? pm_recover(&how, r, err) : status;
}

// A list of a block of each of the classes, which root slot 0 names.
static void make_list(unsigned from, unsigned to) {
    void **last = (void **)(uintptr_t)pm_heap_slot(0);
    for (unsigned cls = from; cls <= to; cls++) {
        void *p;
        MUST(take(cls, &p, 1) == 1);
        memset(p, 0, pm_classes[cls].size);
        *(void **)p = last;
        last = p;
    }
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)last);
}

static uint64_t sizes(unsigned from, unsigned to) {
    uint64_t bytes = 0;
    for (unsigned cls = from; cls <= to; cls++)
        bytes += pm_classes[cls].size;
    return bytes;
}

static void check_list(const struct pm_recovery *r, unsigned to) {
    CHECK_EQ(r->live_objects, to);
    CHECK_EQ(r->live_bytes, sizes(1, to));
    unsigned cls = to;
    for (void **p = (void **)(uintptr_t)pm_heap_slot(0); p; p = *p, cls--)
        CHECK_EQ(pm_usable_size(p), pm_classes[cls].size);
    CHECK_EQ(cls, 0);
    good();
}

// ---- a new heap ---------------------------------------------------------------------------------

static void make_new(void) {
    start();
    CHECK(has_bit());
    make_list(1, PM_CLASSES);
}

static void test_new_heap(void) {
    CHECK_EQ(in_child(make_new), 0);
    struct pm_recovery r;
    struct pm_error err = {0};
    MUST(reopen(&r, &err) == PM_OK);
    check_list(&r, PM_CLASSES);
    CHECK(pm_close());
}

// Slabs become others of an added class, and slabs of an added class become others.
static void make_morphed(unsigned from, unsigned to) {
    start();
    sparse_slabs(from, 2, 1);
    void *taken;
    MUST(take(to, &taken, 1) == 1);
    void **p = taken;
    void *old = kept[pm_slab_of(p) == pm_slab_of(kept[0][0]) ? 0 : 1][0];
    CHECK_EQ(pm_slab_of(p), pm_slab_of(old));
    memset(old, 0, pm_classes[from].size);
    memset(p, 0, pm_classes[to].size);
    *p = old;
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)p);
}

static void make_to_added(void) { make_morphed(20, FIRST_ADDED); }
static void make_from_added(void) { make_morphed(PM_CLASSES, 17); }

static void check_morphed(unsigned from, unsigned to) {
    struct pm_recovery r;
    struct pm_error err = {0};
    MUST(reopen(&r, &err) == PM_OK);
    CHECK_EQ(r.live_objects, 2);
    CHECK_EQ(r.live_bytes, pm_classes[from].size + pm_classes[to].size);
    CHECK_EQ(r.morphing, 1);
    good();
    CHECK(pm_close());
}

static void test_morph_to_added(void) {
    CHECK_EQ(in_child(make_to_added), 0);
    check_morphed(20, FIRST_ADDED);
}

static void test_morph_from_added(void) {
    CHECK_EQ(in_child(make_from_added), 0);
    check_morphed(PM_CLASSES, 17);
}

// ---- a heap from before -------------------------------------------------------------------------

static void make_old(void) {
    start_old();
    make_list(1, PM_CLASSES_FIRST);
    CHECK(!has_bit());
}

// Killed after its first slab of an added class.
static void go_on_with_old(void) {
    struct pm_recovery r;
    struct pm_error err = {0};
    MUST(reopen(&r, &err) == PM_OK);
    check_list(&r, PM_CLASSES_FIRST);
    CHECK(!has_bit());
    make_list(FIRST_ADDED, PM_CLASSES);
    CHECK(has_bit());
    CHECK_EQ(super()->crc, pm_crc32c(0, super(), offsetof(struct pm_superblock, crc)));
}

static void test_old_heap(void) {
    CHECK_EQ(in_child(make_old), 0);
    CHECK_EQ(in_child(go_on_with_old), 0);
    struct pm_recovery r;
    struct pm_error err = {0};
    MUST(reopen(&r, &err) == PM_OK);
    CHECK(has_bit());
    check_list(&r, PM_CLASSES);
    CHECK(pm_close());
}

static uint64_t durable_features; // at the first flush of a slab's header
static bool slab_flushed, features_pending, features_durable;

static void see_flush(const void *addr, size_t len) {
    const struct pm_file *slabs = &pm_heap.shard[0].slabs;
    const char *p = addr;
    (void)len;
    features_pending |= addr == (const void *)&super()->incompat;
    if (!slab_flushed && p >= slabs->map && p < slabs->map + slabs->reach) {
        slab_flushed = true;
        durable_features = features_durable ? super()->incompat : 0;
    }
}

static void see_drain(void) { features_durable |= features_pending; }

static void test_bit_before_the_slab(void) {
    start_old();
    pm_persist = (struct pm_persist_ops){see_flush, see_drain};
    void *p;
    MUST(take(FIRST_ADDED, &p, 1) == 1);
    CHECK(slab_flushed);
    CHECK(durable_features & PM_INCOMPAT_CLASSES);
}

// Such a slab is damage where no feature announces it: an older build would have refused it, too.
static void make_wrong(void) {
    start();
    make_list(FIRST_ADDED, FIRST_ADDED);
    without_bit();
}

static void make_wrong_morph(void) {
    make_from_added();
    without_bit();
}

static void refused(void (*make)(void), const char *part) {
    CHECK_EQ(in_child(make), 0);
    struct pm_recovery r;
    struct pm_error err = {0};
    CHECK_EQ(reopen(&r, &err), PM_DAMAGE);
    CHECK_HAS(err.text, part);
}

static void test_slab_without_bit(void) {
    refused(make_wrong, "has class 37, which this heap cannot have");
}

static void test_morphed_slab_without_bit(void) {
    refused(make_wrong_morph, "has class 40, which this heap cannot have");
}

int main(void) {
    RUN_CHILD(new_heap);
    RUN_CHILD(morph_to_added);
    RUN_CHILD(morph_from_added);
    RUN_CHILD(old_heap);
    RUN_CHILD(bit_before_the_slab);
    RUN_CHILD(slab_without_bit);
    RUN_CHILD(morphed_slab_without_bit);
    return CHECK_DONE();
}

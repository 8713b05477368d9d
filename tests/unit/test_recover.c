// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What a caller may ask of a recovery: reports of its progress, and a count of words that point
// into given ranges.
#include "recovery/recover.h"

#include "heap_fixture.h"
#include "media/open/heap_open.h"
#include "recovery/offline.h"

#define EXTENTS 5000 // the sweep reports once per 4096 extents
#define LAY 0x123000000000ull

static uint64_t *new_page(void) {
    uint32_t index = pm_extent_take(1, 1);
    MUST(index && pm_extent_publish(index, false));
    return pm_extent_address(&pm_extents[index]);
}

static void make(void) {
    pm_options_default();
    fixture_new_heap();
    uint64_t *first = new_page(), *second = new_page();
    first[0] = (uint64_t)(uintptr_t)second;
    first[1] = LAY;                          // the first byte of the first range
    second[3] = second[4] = LAY + 0xfff;     // its last byte, twice
    second[5] = LAY + 0x1000;                // after the range
    second[6] = LAY * 2 + 8;                 // in the second range
    for (unsigned i = 2; i < EXTENTS; i++) { // no root reaches these extents
        uint64_t *dead = new_page();
        dead[0] = LAY;
    }
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)first);
    pm_heap_release();
}

static unsigned marks, sweeps, others;

static void hear(const char *stage, uint64_t done, uint64_t total) {
    CHECK(done <= total);
    marks += strcmp(stage, "mark") == 0;
    sweeps += strcmp(stage, "sweep") == 0;
    others += strcmp(stage, "mark") != 0 && strcmp(stage, "sweep") != 0;
}

static void reopen(const struct pm_recover_options *options) {
    struct pm_error err;
    struct pm_recovery found;
    MUST(in_child(make) == 0);
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_READONLY, &err) == PM_OK);
    CHECK_EQ(pm_recover(options, &found, &err), PM_OK);
    CHECK_EQ(found.live_objects, 2);
    CHECK_EQ(found.leaked_objects, EXTENTS - 2);
    CHECK_EQ(found.roots, 1);
}

static void test_progress(void) {
    reopen(&(struct pm_recover_options){.mark = {.markers = 1, .progress = hear}});
    CHECK(sweeps > 0 && others == 0);
}

static void test_stray_words(void) {
    struct pm_stray stray = {.start = {LAY, LAY * 2}, .len = {0x1000, 0x1000}};
    reopen(&(struct pm_recover_options){.mark = {.markers = 3, .stray = &stray}});
    CHECK(stray.counted);
    CHECK_EQ(stray.words[0], 3);
    CHECK_EQ(stray.words[1], 1);
}

static void test_neither(void) { reopen(&(struct pm_recover_options){.mark.markers = 2}); }

int main(void) {
    RUN_CHILD(progress);
    RUN_CHILD(stray_words);
    RUN_CHILD(neither);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// On DAX the space of heap.0 is allocated and released in units of 2 MiB, so that the kernel can
// map each unit by one entry of the page table. These tests also check what units must not break.
#include "dax_fixture.h"
#include "pages/free_extents.h"

#define UNIT ((uint64_t)2 << 20)
#define UNIT_PAGES (UNIT >> PM_PAGE_SHIFT)
#define BLOCKS 400

static uint32_t block[BLOCKS];

static uint64_t some_pages(void) { return rnd(4) ? 16 : 1 + rnd(300); }

static void fill(uint32_t index) {
    const struct pm_extent *e = &pm_extents[index];
    memset(pm_extent_address(e), (int)(e->page % 251 + 1), pm_extent_bytes(e));
}

static bool filled(const struct pm_extent *e) {
    const unsigned char *at = pm_extent_address(e);
    for (size_t i = 0; i < pm_extent_bytes(e); i += 512)
        if (at[i] != e->page % 251 + 1)
            return false;
    return true;
}

static void allocate_some(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!block[i]) {
            MUST((block[i] = pm_extent_allocate(some_pages(), 1)) != 0);
            fill(block[i]);
        }
}

static void free_some(uint64_t one_in) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (block[i] && rnd(one_in) == 0) {
            pm_extent_release(block[i]);
            block[i] = 0;
        }
}

static void check_all_filled(void) {
    unsigned bad = 0;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        bad += !filled(&pm_extents[i]);
    CHECK_EQ(bad, 0);
}

// The sum of the units that hold an active extent, in bytes.
static uint64_t units_in_use(void) {
    uint64_t count = 0;
    for (uint64_t page = 0; page << PM_PAGE_SHIFT < pm_heap.shard[0].frontier; page += UNIT_PAGES) {
        bool used = false;
        for (uint32_t i = 0; !used && (i = pm_extent_next_active(i)) != 0;) {
            const struct pm_extent *e = &pm_extents[i];
            used = e->page < page + UNIT_PAGES && e->page + e->pages > page;
        }
        count += used;
    }
    return count * UNIT;
}

static void test_growth(void) {
    fixture_new_heap();
    allocate_some();
    CHECK(asked.whole > 5);
    CHECK_EQ(asked.parts, 0);
    CHECK_EQ(fixture_blocks() % UNIT, 0);
    CHECK_EQ(fixture_blocks(), units_in_use());
    check_all_filled();
}

static void test_shrinking(void) {
    pm_options.decay_ms.number = 3600000;
    fixture_new_heap();
    allocate_some();
    for (unsigned round = 0; round < 20; round++) {
        free_some(1 + rnd(6));
        pm_extent_purge(true);
        CHECK_EQ(punched.parts, 0);
        CHECK_EQ(fixture_blocks(), units_in_use());
        check_all_filled();
        allocate_some();
        CHECK_EQ(asked.parts, 0);
    }
    CHECK(punched.whole > 0);
    free_some(1);
    pm_extent_purge(true);
    CHECK_EQ(fixture_blocks(), 0);
    CHECK_EQ(pm_heap.shard[0].frontier, 0);
}

// Where space is short, everything free is released, whole units or not.
static void test_short_of_space(void) {
    pm_options.decay_ms.number = 3600000;
    fixture_new_heap();
    allocate_some();
    free_some(2);
    pm_extent_purge_to(&pm_heap.shard[0], 0);
    CHECK(punched.parts > 0);
    CHECK_EQ(fixture_blocks(), pm_shard_extents[0].active.pages << PM_PAGE_SHIFT);
    check_all_filled();
    allocate_some(); // these go into the holes
    check_all_filled();
}

static void test_decay_passes_parts_by(void) {
    pm_options.decay_ms.number = 0; // no delay
    fixture_new_heap();
    allocate_some();
    for (unsigned round = 0; round < 5; round++)
        free_some(2);
    CHECK(punched.whole > 0);
    CHECK_EQ(punched.parts, 0);
    check_all_filled();
}

static void test_nearly_full(void) {
    fixture_new_heap();
    too_long = 128 << 10;
    for (unsigned i = 0; i < 40; i++)
        MUST((block[i] = pm_extent_allocate(16, 16)) != 0);
    CHECK(asked.parts >= 40);
    CHECK_EQ(fixture_blocks(), 40 * 16 * PM_PAGE_SIZE);
    too_long = 0;
    CHECK_EQ(pm_extent_allocate(16, 16), 0);
}

static void test_limit(void) {
    pm_options.limit.number = 3 * PM_REGION_SIZE;
    fixture_new_heap();
    uint64_t count = 0;
    while (pm_extent_allocate(16, 16))
        count++;
    CHECK_EQ(count, 3 * PM_REGION_PAGES / 16);
    CHECK_EQ(fixture_blocks(), 3 * PM_REGION_SIZE);
}

static void test_lazy_blocks_take_nothing(void) {
    fixture_new_heap();
    CHECK(pm_extent_allocate(PM_HUGE_PAGES * 4, 1) != 0);
    CHECK_EQ(fixture_blocks(), 0);
    pm_options.reserve.number = PM_RESERVE_STRICT;
    CHECK(pm_extent_allocate(PM_HUGE_PAGES * 4, 1) != 0);
    CHECK_EQ(fixture_blocks(), 4 * UNIT);
    CHECK_EQ(asked.parts, 0);
}

static void use_and_die(void) {
    pm_options.decay_ms.number = 3600000;
    fixture_new_heap();
    allocate_some();
    free_some(2);
    _exit(check_failures != 0);
}

static void test_reopening(void) {
    struct pm_error err;
    CHECK_EQ(in_child(use_and_die), 0);
    MUST(fixture_reopen(PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK(pm_shard_extents[0].reclaimed.pages > 0);
    CHECK_EQ(punched.parts, 0);
    CHECK_EQ(fixture_blocks(), units_in_use());
    check_all_filled();
    unsigned before = asked.parts + asked.whole;
    uint64_t room = pm_shard_extents[0].reclaimed.pages;
    CHECK(pm_extent_allocate(16, 1) != 0); // from the space that is there
    CHECK(pm_shard_extents[0].reclaimed.pages == room - 16 && asked.parts + asked.whole == before);
}

static void test_reopening_on_a_full_disk(void) {
    struct pm_error err;
    CHECK_EQ(in_child(use_and_die), 0);
    disk_full = true;
    MUST(fixture_reopen(PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(fixture_blocks(), pm_shard_extents[0].active.pages << PM_PAGE_SHIFT);
    check_all_filled();
}

static void test_looking_takes_nothing(void) {
    struct pm_error err;
    CHECK_EQ(in_child(use_and_die), 0);
    MUST(fixture_reopen(PM_OPEN_READONLY, &err) == PM_OK);
    CHECK_EQ(asked.whole + asked.parts + punched.whole + punched.parts, 0);
}

static void test_pages_elsewhere(void) {
    no_dax = true;
    fixture_new_heap();
    CHECK(pm_extent_allocate(16, 16) != 0);
    CHECK_EQ(fixture_blocks(), 16 * PM_PAGE_SIZE);
    allocate_some();
    free_some(2);
    pm_extent_purge(true);
    CHECK_EQ(fixture_blocks(), pm_shard_extents[0].active.pages << PM_PAGE_SHIFT);
}

int main(void) {
    pm_options_default();
    RUN_CHILD(growth);
    RUN_CHILD(shrinking);
    RUN_CHILD(short_of_space);
    RUN_CHILD(decay_passes_parts_by);
    RUN_CHILD(nearly_full);
    RUN_CHILD(limit);
    RUN_CHILD(lazy_blocks_take_nothing);
    RUN_CHILD(reopening);
    RUN_CHILD(reopening_on_a_full_disk);
    RUN_CHILD(looking_takes_nothing);
    RUN_CHILD(pages_elsewhere);
    return CHECK_DONE();
}

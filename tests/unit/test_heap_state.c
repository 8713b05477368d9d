// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The heap's state machine: each edge of the drawing in heap_state.h is taken by the function that
// it names, and every other one ends the process.
#include "media/heap_state.h"

#include "blocks/verify.h"
#include "fork/private.h"
#include "heap_fixture.h"
#include "media/commit/commit.h"
#include "media/commit/journal_files.h"
#include "recovery/close.h"
#include "recovery/recover.h"

static struct pm_error err;

static const char *name(enum pm_heap_state state) { return pm_heap_machine.state[state].name; }

static void is(enum pm_heap_state state) {
    CHECK_STR(name(pm_heap_state()), name(state));
    bool on_media = state == PM_HEAP_SHARED || state == PM_HEAP_JOURNALED;
    CHECK_EQ(pm_heap_on_media(), on_media);
    CHECK_EQ(pm_heap_is_journaled(), state == PM_HEAP_JOURNALED);
    CHECK_EQ(pm_heap_is_held(), on_media || state == PM_HEAP_PARTED);
    bool there = pm_heap_is_held() || state == PM_HEAP_BORROWED; // what the table says
    CHECK_EQ(pm_heap.super != NULL, there);
    CHECK_EQ(pm_heap.dir_fd >= 0, there);
}

// ---- the edges ----------------------------------------------------------------------------------

static void test_open_and_release(void) {
    is(PM_HEAP_CLOSED);
    pm_options_default();
    CHECK(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err) != PM_OK);
    is(PM_HEAP_CLOSED);
    MUST(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err) == PM_OK);
    is(PM_HEAP_SHARED);
    pm_heap_release();
    is(PM_HEAP_CLOSED);
    pm_heap_release(); // nothing is held
    is(PM_HEAP_CLOSED);
    MUST(pm_heap_open(fixture_dir, PM_OPEN_READONLY, false, &err) == PM_OK);
    is(PM_HEAP_SHARED);
    pm_heap_release();
    is(PM_HEAP_CLOSED);
}

// What fails once the superblock is mapped has been SHARED for a moment.
static void test_open_of_a_damaged_heap(void) {
    char path[160];
    pm_options_default();
    MUST(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err) == PM_OK);
    pm_heap.super->state.state ^= 1;
    pm_heap_release();
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err), PM_DAMAGE);
    is(PM_HEAP_CLOSED);
    snprintf(path, sizeof path, "%s/superblock", fixture_dir);
    MUST(truncate(path, 0) == 0);
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err), PM_DAMAGE);
    is(PM_HEAP_CLOSED);
}

static void test_volatile(void) {
    pm_options_default();
    MUST(pm_heap_volatile(&err) == PM_OK);
    is(PM_HEAP_VOLATILE);
    pm_heap_release(); // nothing is held
    is(PM_HEAP_VOLATILE);
}

// As after a fork. Metadata is there until the release.
static void test_private(void) {
    pm_options_default();
    fixture_new_heap();
    is(PM_HEAP_SHARED);
    CHECK(pm_private_enter(false));
    is(PM_HEAP_PARTED);
    CHECK(pm_heap.super->super.magic == PM_SUPER_MAGIC);
    pm_heap_release();
    is(PM_HEAP_PRIVATE);
    pm_heap_release();
    is(PM_HEAP_PRIVATE);
}

// As at the end of a program, where the cut fails first and then does not.
static void test_cut(void) {
    pm_options_default();
    fixture_new_heap();
    pm_heap_become(PM_HEAP_PARTED);
    is(PM_HEAP_PARTED);
    pm_heap_become(PM_HEAP_SHARED);
    is(PM_HEAP_SHARED);
    pm_heap_become(PM_HEAP_PARTED);
    CHECK(pm_private_part(pm_private_find(false), true, true));
    is(PM_HEAP_PARTED);
    pm_heap_release(); // in a child that it forks
    is(PM_HEAP_PRIVATE);
}

// An extent in use, a gap, and another extent in use, in a heap that was closed cleanly.
static void make_clean_heap(void) {
    pm_options_default();
    fixture_new_heap();
    uint32_t first = pm_extent_allocate(20, 1), gap = pm_extent_allocate(30, 1);
    uint32_t last = pm_extent_allocate(40, 1);
    MUST(first && gap && last);
    memset(pm_extent_address(&pm_extents[first]), 'a', 20 * PM_PAGE_SIZE);
    memset(pm_extent_address(&pm_extents[last]), 'z', 40 * PM_PAGE_SIZE);
    pm_heap.super->slots.slot[0] =
        pm_slot_word(0, (uint64_t)(uintptr_t)pm_extent_address(&pm_extents[first]));
    pm_extent_release(gap);
    pm_extent_purge(true);
    MUST(pm_close());
}

static uint64_t bytes_of(const char *name) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", fixture_dir, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

// As under PMALLOC_OPEN=private. What is stored and what is taken never reaches a file. The tables
// stay whole, and the gap inside of the file is not used.
static void test_borrow(void) {
    CHECK_EQ(in_child(make_clean_heap), 0);
    uint64_t space = bytes_of("heap.0");
    pm_options_default();
    fixture_tables();
    struct pm_recovery found;
    MUST(pm_heap_open(fixture_dir, PM_OPEN_READONLY, false, &err) == PM_OK);
    MUST(pm_heap_map(&err) == PM_OK);
    uint64_t size = pm_heap.shard[0].data.size;
    MUST(pm_recover(&(struct pm_recover_options){.borrow = true}, &found, &err) == PM_OK);
    CHECK(found.uncollected && !found.marked);
    CHECK_EQ(found.extents, 2); // although no root reaches the second one
    is(PM_HEAP_SHARED);
    CHECK(pm_heap_borrow(&err) == PM_OK);
    is(PM_HEAP_BORROWED);
    char *old = (char *)(uintptr_t)pm_heap_slot(0);
    CHECK_EQ(old[0], 'a');
    memset(old, 'b', PM_PAGE_SIZE);
    for (unsigned pages = 1; pages <= 600; pages += 13) {
        uint32_t index = pm_extent_allocate(pages, 1);
        MUST(index);
        CHECK(pm_extents[index].page << PM_PAGE_SHIFT >= size);
        if (pm_extents[index].zero)
            CHECK_EQ(*(char *)pm_extent_address(&pm_extents[index]), 0);
        memset(pm_extent_address(&pm_extents[index]), 'c', pages * PM_PAGE_SIZE);
        if (pages % 2)
            pm_extent_release(index);
        CHECK_EQ(pm_verify(false, &err), PM_OK);
    }
    CHECK(pm_extent_resize(pm_extent_find(old), 10)); // its end is free now,
    CHECK(pm_extent_resize(pm_extent_find(old), 20)); // and it cannot grow over the gap
    CHECK(!pm_extent_resize(pm_extent_find(old), 30));
    CHECK(pm_extent_free_block(old));
    CHECK(!pm_extent_free_block(old));
    pm_extent_purge(true);
    CHECK_EQ(old[0], 0);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
    CHECK_EQ(bytes_of("heap.0"), space);
}

// As under PMALLOC_COMMIT, in a process that then forks. What was not committed stays with it.
static void test_journal(void) {
    struct pm_commit_cost cost;
    pm_options_default();
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    is(PM_HEAP_JOURNALED);
    pm_heap.super->slots.slot[1] = pm_slot_word(1, 4096);
    pm_commit_take(true, &cost);
    CHECK_EQ(cost.pages, 1);
    CHECK(pm_commit_finish());
    pm_heap.super->slots.slot[1] = pm_slot_word(1, 8192);
    CHECK(pm_private_enter(false));
    is(PM_HEAP_PARTED);
    pm_heap_release();
    is(PM_HEAP_PRIVATE);
}

static void test_journal_is_found(void) {
    CHECK_EQ(in_child(test_journal), 0);
    pm_options_default();
    MUST(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err) == PM_OK);
    CHECK_EQ(pm_heap_slot(1), 4096);
    CHECK(pm_heap.super->super.incompat & PM_INCOMPAT_JOURNAL);
    CHECK(pm_journal_opened.is == PM_JOURNAL_APPLIED && pm_journal_opened.commit.time != 0);
}

// ---- no other edge ------------------------------------------------------------------------------

static enum pm_heap_state wrong_from, wrong_to;
static int said[2];

static void take_it(void) {
    static const enum pm_heap_state way[PM_HEAP_STATES][3] = {
        [PM_HEAP_SHARED] = {PM_HEAP_SHARED},
        [PM_HEAP_JOURNALED] = {PM_HEAP_SHARED, PM_HEAP_JOURNALED},
        [PM_HEAP_PARTED] = {PM_HEAP_SHARED, PM_HEAP_PARTED},
        [PM_HEAP_PRIVATE] = {PM_HEAP_SHARED, PM_HEAP_PARTED, PM_HEAP_PRIVATE},
        [PM_HEAP_VOLATILE] = {PM_HEAP_VOLATILE},
        [PM_HEAP_BORROWED] = {PM_HEAP_SHARED, PM_HEAP_BORROWED},
    };
    for (int i = 0; i < 3 && way[wrong_from][i] != PM_HEAP_CLOSED; i++)
        pm_heap_become(way[wrong_from][i]);
    MUST(dup2(said[1], STDERR_FILENO) >= 0);
    pm_heap_become(wrong_to);
}

static bool drawn(enum pm_heap_state from, enum pm_heap_state to) {
    static const enum pm_heap_state edge[][2] = {
        {PM_HEAP_CLOSED, PM_HEAP_SHARED},    {PM_HEAP_CLOSED, PM_HEAP_VOLATILE},
        {PM_HEAP_SHARED, PM_HEAP_CLOSED},    {PM_HEAP_SHARED, PM_HEAP_PARTED},
        {PM_HEAP_PARTED, PM_HEAP_SHARED},    {PM_HEAP_PARTED, PM_HEAP_PRIVATE},
        {PM_HEAP_SHARED, PM_HEAP_BORROWED},  {PM_HEAP_SHARED, PM_HEAP_JOURNALED},
        {PM_HEAP_JOURNALED, PM_HEAP_PARTED},
    };
    for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++)
        if (edge[i][0] == from && edge[i][1] == to)
            return true;
    return false;
}

static void test_no_other_edge(void) {
    for (wrong_from = 0; wrong_from < PM_HEAP_STATES; wrong_from++)
        for (wrong_to = 0; wrong_to < PM_HEAP_STATES; wrong_to++) {
            char text[512] = "", part[64];
            MUST(pipe(said) == 0);
            bool good = drawn(wrong_from, wrong_to);
            CHECK_EQ(in_child(take_it), good ? 0 : 128 + SIGABRT);
            close(said[1]);
            if (read(said[0], text, sizeof text - 1) < 0)
                CHECK(false);
            close(said[0]);
            snprintf(part, sizeof part, "the heap is %s and cannot become %s", name(wrong_from),
                     name(wrong_to));
            if (good)
                CHECK_STR(text, "");
            else
                CHECK_HAS(text, part);
        }
}

int main(void) {
    RUN_CHILD(open_and_release);
    RUN_CHILD(open_of_a_damaged_heap);
    RUN_CHILD(volatile);
    RUN_CHILD(private);
    RUN_CHILD(cut);
    RUN_CHILD(borrow);
    RUN_CHILD(journal_is_found);
    RUN_CHILD(no_other_edge);
    return CHECK_DONE();
}

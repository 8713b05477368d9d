// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A heap without names, and how it gets them. tests/integration/test_nameless.py does the same in
// programs, with failures and kills.
#include "heap_opening.h"

static char *open_nameless(uint64_t pages) {
    pm_options_default();
    fixture_tables();
    MUST(pm_heap_open_nameless(fixture_root, "a heap", &err) == PM_OK);
    MUST(pm_heap_map(&err) == PM_OK);
    pm_heap_dirty();
    CHECK(pm_heap.nameless && pm_heap.created && pm_heap_on_media());
    CHECK_STR(pm_heap.dir, "a heap (unnamed)");
    MUST(pm_shard_set_frontier(&pm_heap.shard[0], pages * PM_PAGE_SIZE));
    memset(pm_heap_at(0), 'x', pages * PM_PAGE_SIZE);
    return pm_heap_at(0);
}

static bool all_x(const char *at, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (at[i] != 'x')
            return false;
    return true;
}

static void check_named(uint64_t pages) {
    MUST(pm_dir_name(fixture_dir, &err) == PM_OK);
    CHECK(!pm_heap.nameless);
    CHECK_STR(pm_heap.dir, fixture_dir);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, PM_HEAP_BASE);
    pm_heap_release();
    munmap(pm_heap_at(0), pm_range);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    CHECK(pm_heap_root_count() == 1 && pm_heap.shard[0].data.size == pages * PM_PAGE_SIZE);
    MUST(pm_heap_map(&err) == PM_OK);
    CHECK(all_x(pm_heap_at(0), pages * PM_PAGE_SIZE));
}

static void test_nothing_is_there(void) {
    uint64_t before = fingerprint();
    open_nameless(20);
    CHECK(!pm_dir_ready());
    pm_heap_remove();
    CHECK_EQ(fingerprint(), before);
    pm_heap_release();
    CHECK(!pm_heap.nameless && pm_heap.shard[0].data.fd < 0);
}

static void test_named(void) {
    open_nameless(20);
    check_named(20);
}

static void test_another_heap_is_there(void) {
    make_heap();
    uint64_t before = fingerprint();
    open_nameless(20);
    CHECK_EQ(pm_dir_name(fixture_dir, &err), PM_OPERATIONAL);
    CHECK(pm_is_busy(&err) && pm_heap.nameless && pm_heap.dir_fd < 0);
    CHECK_STR(pm_heap.dir, "a heap (unnamed)");
    CHECK_EQ(fingerprint(), before);
    strcat(fixture_dir, "2");
    check_named(20);
}

static void test_a_remnant_is_there(void) {
    char path[160];
    MUST(mkdir(fixture_dir, 0700) == 0);
    snprintf(path, sizeof path, "%s/superblock.new", fixture_dir);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    snprintf(path, sizeof path, "%s/heap.3", fixture_dir);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    open_nameless(7);
    check_named(7);
    CHECK(access(path, F_OK) != 0);
}

static void test_a_stranger_is_there(void) {
    char path[160];
    MUST(mkdir(fixture_dir, 0700) == 0);
    snprintf(path, sizeof path, "%s/letter", fixture_dir);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    open_nameless(7);
    uint64_t before = fingerprint();
    CHECK_EQ(pm_dir_name(fixture_dir, &err), PM_OPERATIONAL);
    CHECK(pm_heap.nameless && !pm_is_busy(&err));
    CHECK_EQ(fingerprint(), before);
}

// Once more, from the mappings.
static void test_files_closed_by_the_program(void) {
    const char *data = open_nameless(20);
    close_range(3, ~0u, 0);
    CHECK(pm_file_ready(&pm_heap.shard[0].data) && all_x(data, 20 * PM_PAGE_SIZE));
    MUST(pm_shard_set_frontier(&pm_heap.shard[0], 30 * PM_PAGE_SIZE));
    memset(pm_heap_at(20 * PM_PAGE_SIZE), 'x', 10 * PM_PAGE_SIZE);
    check_named(30);
}

int main(void) {
    RUN_CHILD(nothing_is_there);
    RUN_CHILD(named);
    RUN_CHILD(another_heap_is_there);
    RUN_CHILD(a_remnant_is_there);
    RUN_CHILD(a_stranger_is_there);
    RUN_CHILD(files_closed_by_the_program);
    return CHECK_DONE();
}

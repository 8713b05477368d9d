// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Opening a heap again. The extents in the log are active, everything else is free. Interrupted
// resizes are finished. A log that contradicts itself or the data file is refused.
#include "extent_model.h"
#include "media/backing/backing.h"

// What one session leaves to the next, shared by their processes.
static struct {
    struct held held[MODEL];
    uint64_t pages;
} * left;

static void share(void) {
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(left != MAP_FAILED);
    memset(left, 0, sizeof *left);
}

static void leave(void) {
    memcpy(left->held, held, sizeof held);
    left->pages = held_pages;
}

// An extent keeps its place in the heap, but gets another index in each process.
static void resume(void) {
    memcpy(held, left->held, sizeof held);
    held_pages = left->pages;
    for (unsigned i = 0; i < MODEL; i++) {
        if (!held[i].index)
            continue;
        held[i].index = *pm_page_extent(held[i].page);
        CHECK(held[i].index != 0);
        // The collector sets the tags of an opened heap, and none runs here.
        if (!held[i].slab)
            *pm_tag_of_page(held[i].page) = PM_TAG_EXTENT;
    }
}

static void session(void) {
    struct pm_error err = {0};
    pm_options_default();
    if (access(fixture_dir, F_OK) != 0) {
        fixture_new_heap();
    } else {
        CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
        CHECK_STR(err.text, "");
        resume();
    }
    check_partition();
    check_held();
    // Free extents read as zeroes.
    for (uint32_t i = 1; i < pm_shard_extents[0].top; i++)
        if (pm_extents[i].state == PM_EXTENT_RETAINED)
            CHECK(reads_zero(pm_extents[i].page, pm_extents[i].pages));
    fixture_seed += 1000003 * (left->pages + 1);
    model_run(1200);
    leave();
}

static void test_sessions(void) {
    share();
    for (int i = 0; i < 8; i++)
        CHECK_EQ(in_child(session), 0);
}

static void look(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_READONLY, &err), PM_OK);
    CHECK_STR(err.text, "");
    resume();
    check_partition();
    check_held();
}

static void test_readonly(void) {
    share();
    CHECK_EQ(in_child(session), 0);
    char path[160];
    struct stat before, after;
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    MUST(stat(path, &before) == 0);
    CHECK_EQ(in_child(look), 0);
    MUST(stat(path, &after) == 0);
    // st_blocks is not compared: tmpfs corrects it by itself
    CHECK_EQ(before.st_size, after.st_size);
    CHECK(memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) == 0);
    CHECK_EQ(in_child(session), 0);
}

static void all_free(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    CHECK_EQ(pm_extent_stats().active, 0);
    CHECK_EQ(pm_heap.shard[0].frontier, 0);
    CHECK_EQ(fixture_blocks(), 0);
}

static void take_unpublished(void) {
    pm_options_default();
    fixture_new_heap();
    for (int i = 0; i < 10; i++)
        CHECK(pm_extent_take(100, 1) != 0);
}

static void test_unpublished_extents_are_free(void) {
    CHECK_EQ(in_child(take_unpublished), 0);
    CHECK_EQ(in_child(all_free), 0);
}

// ---- interrupted resizes ------------------------------------------------------------------------

static uint64_t second_pages; // pages of the entry that stands beside the one of 40 pages
static bool second_first;     // whether that entry was appended first

static void half_resized(void) {
    pm_options_default();
    fixture_new_heap();
    uint32_t index = pm_extent_take(100, 1);
    MUST(index && pm_extents[index].page == 0);
    uint64_t entries[2] = {pm_entry_make(PM_ENTRY_EXTENT, 0, 40),
                           pm_entry_make(PM_ENTRY_EXTENT, 0, second_pages)};
    pm_log_append(&pm_heap.shard[0], entries[second_first], NULL);
    pm_log_append(&pm_heap.shard[0], entries[!second_first], NULL);
}

static void finished(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    CHECK_STR(err.text, "");
    check_partition(); // checks also that one entry stands in the log
    CHECK_EQ(pm_extents[*pm_page_extent(0)].pages, second_pages > 40 ? second_pages : 40);
    CHECK_EQ(pm_extent_stats().active, 1);
    uint32_t index = *pm_page_extent(0);
    CHECK(pm_extent_resize(index, 90));
    check_partition();
    pm_extent_release(index);
    check_partition();
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 0);
}

static void resize_case(uint64_t pages, bool first) {
    second_pages = pages;
    second_first = first;
    CHECK_EQ(in_child(half_resized), 0);
    CHECK_EQ(in_child(finished), 0);
    CHECK_EQ(in_child(all_free), 0);
    char command[160];
    snprintf(command, sizeof command, "%s/heap", fixture_root);
    nftw(command, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_interrupted_resize(void) {
    resize_case(60, false);
    resize_case(60, true);
    resize_case(20, false);
    resize_case(20, true);
    resize_case(1, false);
    resize_case(1, true);
    resize_case(40, false);
    resize_case(41, true);
    resize_case(100, false);
}

// ---- damage -------------------------------------------------------------------------------------

static uint64_t forged[4];
static const char *complaint;

static void forge(void) {
    pm_options_default();
    fixture_new_heap();
    MUST(pm_shard_set_frontier(&pm_heap.shard[0], PM_REGION_SIZE));
    for (int i = 0; i < 4 && forged[i]; i++)
        MUST(pm_log_append(&pm_heap.shard[0], forged[i], NULL) != PM_LOG_NOWHERE);
}

static void refuse(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_DAMAGE);
    CHECK_HAS(err.text, complaint);
    CHECK_HAS(err.text, fixture_dir);
    struct stat st;
    CHECK(fstat(pm_heap.shard[0].data.fd, &st) == 0 && (size_t)st.st_size == PM_REGION_SIZE);
}

static void damage(const char *text, uint64_t a, uint64_t b, uint64_t c) {
    forged[0] = a, forged[1] = b, forged[2] = c;
    complaint = text;
    CHECK_EQ(in_child(forge), 0);
    CHECK_EQ(in_child(refuse), 0);
    char dir[160];
    snprintf(dir, sizeof dir, "%s/heap", fixture_root);
    nftw(dir, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

#define EXTENT(page, pages) pm_entry_make(PM_ENTRY_EXTENT, page, pages)
#define SLAB(page, pages) pm_entry_make(PM_ENTRY_SLAB, page, pages)

static void test_damage(void) {
    damage("truncated", EXTENT(1000, 25), 0, 0);
    damage("truncated", EXTENT((1ull << 28) - 1, 1), 0, 0);
    damage("", EXTENT(5, 0), 0, 0);
    damage("slab", SLAB(8, 16), 0, 0);
    damage("slab", SLAB(16, 15), 0, 0);
    damage("overlap", EXTENT(10, 20), EXTENT(15, 5), 0);               // inside
    damage("overlap", EXTENT(15, 5), EXTENT(10, 20), 0);               // around
    damage("overlap", EXTENT(10, 20), EXTENT(15, 30), 0);              // across
    damage("overlap", EXTENT(10, 20), EXTENT(29, 5), 0);               // on the last page
    damage("overlap", EXTENT(10, 20), EXTENT(20, 10), 0);              // with the same end
    damage("overlap", SLAB(16, 16), EXTENT(16, 4), 0);                 // a slab's start
    damage("overlap", SLAB(16, 16), SLAB(16, 16), 0);                  // twice the same
    damage("overlap", EXTENT(10, 20), EXTENT(10, 30), EXTENT(10, 40)); // two resizes at once
    damage("overlap", EXTENT(10, 20), EXTENT(35, 5), EXTENT(10, 30));  // a resize onto another
}

static void test_side_by_side_is_fine(void) {
    const uint64_t good[] = {EXTENT(10, 20), EXTENT(30, 1), SLAB(32, 16)};
    memcpy(forged, good, sizeof good);
    CHECK_EQ(in_child(forge), 0);
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    check_partition();
    CHECK_EQ(pm_extent_stats().active, 3);
    CHECK_EQ(pm_extent_stats().slab_pages, 16);
}

// A power failure may leave slabs.0 so short that it ends with the last slab's header. New slabs
// get headers all the same.
static void some_slabs(void) {
    pm_options_default();
    fixture_new_heap();
    MUST(pm_slab_create(3, 0, 0) && pm_slab_create(4, 0, 0));
}

static void more_slabs(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    for (int i = 0; i < 40; i++)
        MUST(pm_slab_create(5, 0, 0));
}

static void forty_two_slabs(void) {
    struct pm_error err = {0};
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_READONLY, &err), PM_OK);
    CHECK_EQ(pm_extent_stats().slab_pages, 42 * 16);
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        CHECK_EQ(pm_slab_adopt(pm_extent_slab(&pm_extents[i]), i, &err), PM_OK);
}

static void test_short_slab_headers(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/slabs.0", fixture_dir);
    CHECK_EQ(in_child(some_slabs), 0);
    MUST(truncate(path, 2 * sizeof(struct pm_slab_header)) == 0);
    CHECK_EQ(in_child(more_slabs), 0);
    CHECK_EQ(in_child(forty_two_slabs), 0);
}

// heap.0 is far longer than what is in use. Opening truncates it, and takes no space for headers of
// the part that goes.
static void shrinks(void) {
    struct pm_error err = {0};
    struct stat st;
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    CHECK_EQ(pm_heap.shard[0].frontier, PM_REGION_SIZE);
    CHECK(fstat(pm_heap.shard[0].data.fd, &st) == 0 && (size_t)st.st_size == PM_REGION_SIZE);
    CHECK(fstat(pm_heap.shard[0].slabs.fd, &st) == 0 && st.st_blocks * 512 <= 65536);
    check_partition();
}

static void test_a_huge_free_end(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    CHECK_EQ(in_child(some_slabs), 0);
    MUST(truncate(path, 600ll << 30) == 0);
    CHECK_EQ(in_child(shrinks), 0);
    CHECK_EQ(in_child(shrinks), 0);
}

int main(void) {
    RUN_CHILD(sessions);
    RUN_CHILD(readonly);
    RUN_CHILD(unpublished_extents_are_free);
    RUN_CHILD(interrupted_resize);
    RUN_CHILD(damage);
    RUN_CHILD(side_by_side_is_fine);
    RUN_CHILD(short_slab_headers);
    RUN_CHILD(a_huge_free_end);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Extents of an open heap against a model. test_extent_reopen.c opens heaps again.
#include "blocks/verify.h"
#include "extent_model.h"
#include "media/open/heap_open.h"

static void start(const char *decay_ms) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_DECAY_MS", decay_ms, &err) == PM_OK);
    fixture_new_heap();
}

// Leaves one free piece. What follows is cut from it, in order.
static void start_with_one_piece(void) {
    start("3600000");
    uint32_t piece = pm_extent_take(1024, 1);
    MUST(piece && pm_extent_publish(piece, false));
    pm_extent_release(piece);
}

static void test_model_keeping_everything(void) {
    start("3600000");
    model_run(6000);
    CHECK(pm_extent_stats().reclaimed_pages > 0);
    model_release_all();
    check_partition();
    CHECK(pm_extent_purge(true));
    check_partition();
    CHECK_EQ(pm_heap.shard[0].frontier, 0);
    CHECK_EQ(fixture_blocks(), 0);
}

static void test_model_giving_back_at_once(void) {
    start("0");
    model_run(4000);
    CHECK_EQ(pm_extent_stats().reclaimed_pages <= 512 + 16, 1);
    model_release_all();
    check_partition();
    CHECK_EQ(pm_heap.shard[0].frontier, 0);
}

static void test_model_with_strict_reservation(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_RESERVE", "strict", &err) == PM_OK);
    fixture_new_heap();
    model_run(1500);
    uint32_t huge = pm_extent_take(4096, 1);
    CHECK(huge && fixture_blocks() >= 4096ull << PM_PAGE_SHIFT);
}

static void test_model_in_volatile_memory(void) {
    struct pm_error err;
    pm_options_default();
    fixture_tables();
    CHECK_EQ(pm_heap_volatile(&err), PM_OK);
    model_run(5000);
    model_release_all();
    CHECK(pm_extent_purge(true));
    check_partition();
}

// The file system provides the pages of an extent that is taken. Those of a huge extent are only
// reserved.
static void test_backing(void) {
    start("3600000");
    uint32_t small = pm_extent_take(300, 1);
    CHECK(small && pm_extent_publish(small, false));
    CHECK(fixture_blocks() >= 300u << PM_PAGE_SHIFT);
    CHECK(pm_extents[small].backed);
    uint64_t before = fixture_blocks();
    uint32_t huge = pm_extent_take(32768, 512);
    CHECK(huge && pm_extent_publish(huge, false));
    CHECK_EQ(fixture_blocks(), before);
    CHECK(!pm_extents[huge].backed);
    // A huge extent that nobody touched is freed. Extents taken from it get their pages.
    CHECK(pm_extent_free_block(pm_extent_address(&pm_extents[huge])));
    for (int i = 0; i < 20; i++) {
        uint64_t was = fixture_blocks();
        uint32_t piece = pm_extent_take(512, 1);
        CHECK(piece && pm_extents[piece].backed);
        CHECK(fixture_blocks() >= was);
    }
    CHECK(fixture_blocks() >= 20u * 512 << PM_PAGE_SHIFT);
}

static void test_coalescing(void) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    start_with_one_piece();
    struct held wall = {0}, three[3];
    for (int order = 0; order < 6; order++) {
        for (int i = 0; i < 3; i++)
            model_take(&three[i], 20, 1, false);
        model_take(&wall, 1, 1, false);
        CHECK_EQ(three[1].page, three[0].page + 20);
        CHECK_EQ(three[2].page, three[1].page + 20);
        uint64_t first = three[0].page;
        for (int i = 0; i < 3; i++)
            model_release(&three[orders[order][i]]);
        check_partition();
        CHECK(pm_extents[*pm_page_extent(first)].pages >= 60);
        model_release(&wall);
    }
}

static void test_best_fit(void) {
    start_with_one_piece();
    struct held hole[4], wall[4];
    static const uint64_t sizes[] = {40, 12, 100, 24};
    for (int i = 0; i < 4; i++) {
        model_take(&hole[i], sizes[i], 1, false);
        model_take(&wall[i], 1, 1, false);
    }
    struct held rest; // takes the rest of the piece, so that only the holes are free
    model_take(&rest, 480, 1, false);
    uint64_t at24 = hole[3].page, at12 = hole[1].page;
    for (int i = 0; i < 4; i++)
        model_release(&hole[i]);
    struct held got;
    model_take(&got, 20, 1, false);
    CHECK_EQ(got.page, at24);
    model_take(&got, 12, 1, false);
    CHECK_EQ(got.page, at12);
    check_partition();
}

// One of the free extents has room for `pages` pages from a multiple of `align` on, and was freed
// first; more of the same length that have not were freed after it. The heap does not grow.
static void find_among_fragments(uint64_t length, uint64_t period, uint64_t good, uint64_t pages,
                                 uint64_t align) {
    enum { FRAGMENTS = 24 }; // fewer pages than a request gives back
    uint32_t hole[FRAGMENTS + 1], rest = 0;
    start("3600000");
    uint32_t piece = pm_extent_take((FRAGMENTS + 2) * period, 64);
    MUST(piece && pm_extent_publish(piece, false));
    pm_extent_release(piece);
    for (unsigned i = 0; i <= FRAGMENTS; i++) { // each is cut from the one piece, in order
        uint64_t before = i ? 1 : good;
        uint32_t wall = pm_extent_take(before, 1);
        hole[i] = pm_extent_take(length, 1);
        rest = pm_extent_take(period - length - before, 1);
        MUST(wall && hole[i] && rest && pm_extent_publish(wall, false) &&
             pm_extent_publish(hole[i], false) && pm_extent_publish(rest, false));
        MUST(pm_extents[hole[i]].page % period == before);
    }
    while (pm_extent_stats().reclaimed_pages + pm_extent_stats().retained_pages)
        MUST((rest = pm_extent_take(1, 1)) && pm_extent_publish(rest, false));
    uint64_t at = pm_extents[hole[0]].page, end = pm_heap.shard[0].frontier;
    for (unsigned i = 0; i <= FRAGMENTS; i++)
        pm_extent_release(hole[i]);
    uint32_t found = pm_extent_take(pages, align);
    MUST(found && pm_extent_publish(found, false));
    CHECK_EQ(pm_extents[found].page, (at + align - 1) & ~(align - 1));
    CHECK_EQ(pm_heap.shard[0].frontier, end);
    struct pm_error err;
    CHECK_EQ(pm_verify(true, &err), PM_OK);
}

static void test_a_slab_among_fragments(void) { find_among_fragments(20, 64, 14, 16, 16); }
static void test_an_aligned_block_among_fragments(void) { find_among_fragments(40, 64, 2, 40, 2); }
// Which has room in an extent without room for a slab.
static void test_a_short_block_among_fragments(void) { find_among_fragments(16, 64, 5, 5, 16); }

static void test_resize_in_place(void) {
    start_with_one_piece();
    struct held a, b, c;
    model_take(&a, 100, 1, false);
    model_take(&b, 100, 1, false);
    model_take(&c, 100, 1, false);
    CHECK_EQ(b.page, a.page + 100);
    CHECK(!pm_extent_resize(a.index, 101)); // b lies there
    model_resize(&a, 60);
    CHECK_EQ(a.pages, 60);
    model_resize(&a, 100); // into the pages it gave up before
    CHECK_EQ(a.pages, 100);
    model_release(&b);
    model_resize(&a, 150);
    CHECK_EQ(a.pages, 150);
    model_resize(&a, 200);
    CHECK_EQ(a.pages, 200);
    CHECK(!pm_extent_resize(a.index, 201));
    check_partition();
    model_resize(&c, 5000); // moves the frontier
    CHECK_EQ(c.pages, 5000);
    model_resize(&c, 60000);
    CHECK_EQ(c.pages, 60000);
    check_partition();
    model_resize(&c, 1);
    CHECK(!pm_extent_resize(c.index, 0));
    CHECK(!pm_extent_resize(c.index, PM_ENTRY_PAGES_MAX + 1));
    check_partition();
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 2);
}

static void test_purge_gives_blocks_back(void) {
    start("3600000");
    struct held first, big, last;
    model_take(&first, 10, 1, false);
    model_take(&big, 2000, 1, false);
    model_take(&last, 10, 1, false);
    memset(page_word(big.page), 7, 2000 << PM_PAGE_SHIFT);
    big.stamp = 0x0707070707070707;
    uint64_t before = fixture_blocks();
    model_release(&big);
    CHECK_EQ(fixture_blocks(), before);
    CHECK(pm_extent_purge(true));
    CHECK(fixture_blocks() + (2000ull << PM_PAGE_SHIFT) <= before);
    CHECK(!pm_extent_purge(true));
    check_partition();
    model_take(&big, 2000, 1, false);
    CHECK(pm_extents[big.index].zero);
    model_release(&big);
    uint64_t frontier = pm_heap.shard[0].frontier;
    model_release(&last);
    CHECK(pm_extent_purge(true));
    CHECK(pm_heap.shard[0].frontier < frontier);
    CHECK_EQ(pm_heap.shard[0].frontier, PM_REGION_SIZE);
    struct stat st;
    CHECK(fstat(pm_heap.shard[0].data.fd, &st) == 0 &&
          (uint64_t)st.st_size == pm_heap.shard[0].frontier);
    check_stamp(&first);
}

static void test_decay_with_time(void) {
    start("400"); // the limit falls every 2 ms
    struct held h, wall;
    model_take(&h, 1000, 1, false);
    model_take(&wall, 1, 1, false);
    model_release(&h);
    for (int i = 0; i < 200 && pm_extent_stats().reclaimed_pages; i++) {
        usleep(10000);
        pm_extent_purge(false);
    }
    CHECK_EQ(pm_extent_stats().reclaimed_pages, 0);
    check_partition();
}

static void test_limit(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "8M", &err) == PM_OK);
    fixture_new_heap();
    static struct held all[256];
    unsigned count = 0;
    for (uint32_t index; count < 256 && (index = pm_extent_take(16, 16)) != 0; count++) {
        CHECK(pm_extent_publish(index, true));
        all[count].index = index;
    }
    CHECK_EQ(count, 128);
    CHECK_EQ(pm_heap.shard[0].frontier, 8 << 20);
    CHECK_EQ(pm_extent_take(1, 1), 0);
    check_partition();
    pm_extent_release(all[64].index);
    CHECK_EQ(pm_extent_take(17, 1), 0);
    uint32_t again = pm_extent_take(16, 16);
    CHECK(again != 0 && pm_extent_publish(again, true));
    CHECK_EQ(pm_extent_take(4096, 1), 0);
    CHECK_EQ(pm_extent_take(1ull << 25, 1), 0);
    CHECK_EQ(pm_extent_take(PM_ENTRY_PAGES_MAX + 1, 1), 0);
    CHECK_EQ(pm_extent_take(0, 1), 0);
    CHECK_EQ(pm_extent_take(1, 1ull << 27), 0);
    check_partition();
}

// Every page up to the limit can be taken, also where some pages before the frontier are free
// already.
static void test_limit_in_odd_pieces(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "16M", &err) == PM_OK);
    fixture_new_heap();
    uint32_t a = pm_extent_take(600, 1);
    CHECK(a && pm_extent_publish(a, false));
    uint32_t b = pm_extent_take(4096 - 600, 1); // 424 of its pages lie before the frontier
    CHECK(b && pm_extent_publish(b, false));
    CHECK_EQ(pm_extent_take(1, 1), 0);
    pm_extent_release(b);
    pm_extent_release(a);
    CHECK(pm_extent_take(4096, 512) != 0); // the range starts aligned: no page is lost
}

// The log has no room for the entry. The extent is given back, and nothing else has changed.
static void test_log_full(void) {
    start("3600000");
    pm_heap.shard[0].log.reach = sizeof(struct pm_log_header) + 4 * PM_CHUNK_SIZE;
    uint32_t index, last = 0;
    unsigned count = 0;
    for (; (index = pm_extent_take(1, 1)) != 0 && pm_extent_publish(index, false); count++)
        last = index;
    CHECK(index != 0);
    CHECK_EQ(count, 4 * PM_CHUNK_ENTRIES);
    check_partition();
    CHECK(!pm_extent_resize(last, 3)); // needs two entries at the same time
    CHECK_EQ(pm_extents[last].pages, 1);
    check_partition();
    pm_extent_release(last);
    check_partition();
    CHECK_EQ(pm_extent_stats().active, count - 1);
    pm_heap.shard[0].log.reach = (size_t)1 << 30;
    CHECK((index = pm_extent_take(1, 1)) != 0 && pm_extent_publish(index, false));
    check_partition();
}

// Resizes until the log is compacted. `entries_before` decides whether that happens while a resize
// adds its new entry or while it ends the old one.
static void resize_until_the_log_moves(unsigned entries_before) {
    enum { MANY = 17 * PM_CHUNK_ENTRIES };
    static uint32_t index[MANY];
    struct pm_error err = {0};
    start("3600000");
    for (unsigned i = 0; i < MANY; i++)
        MUST((index[i] = pm_extent_allocate(2, 1)) != 0);
    for (unsigned i = 0; i < entries_before; i++)
        MUST(pm_extent_allocate(1, 1));
    unsigned resized = 0; // every other extent, so that no chunk of the log dies
    for (; resized < 4 * MANY && pm_log_stats(&pm_heap.shard[0]).compactions == 0; resized++)
        CHECK(pm_extent_resize(index[2 * resized % MANY], 1 + 2 * resized / MANY % 2));
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).compactions, 1);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, MANY + entries_before);
    CHECK_EQ(pm_verify(true, &err), PM_OK);
    CHECK_STR(err.text, "");
}

static void while_the_new_entry_is_added(void) { resize_until_the_log_moves(0); }
static void while_the_old_entry_is_ended(void) { resize_until_the_log_moves(1); }

static void test_resize_while_the_log_moves(void) {
    CHECK_EQ(in_child(while_the_new_entry_is_added), 0);
    nftw(fixture_dir, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
    CHECK_EQ(in_child(while_the_old_entry_is_ended), 0);
}

static void test_claim(void) {
    start("3600000");
    struct held h;
    model_take(&h, 10, 1, false);
    char *p = (char *)page_word(h.page);
    CHECK_EQ(pm_extent_find(p + 16), 0);
    CHECK_EQ(pm_extent_find(p + 8), 0);
    CHECK_EQ(pm_extent_find(p + PM_PAGE_SIZE), 0);
    CHECK_EQ(pm_extent_find(p + 9 * PM_PAGE_SIZE), 0);
    CHECK_EQ(pm_extent_find(&h), 0);
    CHECK_EQ(pm_extent_find(NULL), 0);
    CHECK_EQ(pm_extent_find(p), h.index);
}

int main(void) {
    RUN_CHILD(model_keeping_everything);
    RUN_CHILD(model_giving_back_at_once);
    RUN_CHILD(model_with_strict_reservation);
    RUN_CHILD(model_in_volatile_memory);
    RUN_CHILD(backing);
    RUN_CHILD(coalescing);
    RUN_CHILD(best_fit);
    RUN_CHILD(a_slab_among_fragments);
    RUN_CHILD(an_aligned_block_among_fragments);
    RUN_CHILD(a_short_block_among_fragments);
    RUN_CHILD(resize_in_place);
    RUN_CHILD(purge_gives_blocks_back);
    RUN_CHILD(decay_with_time);
    RUN_CHILD(limit);
    RUN_CHILD(limit_in_odd_pieces);
    RUN_CHILD(log_full);
    RUN_CHILD(resize_while_the_log_moves);
    RUN_CHILD(claim);
    return CHECK_DONE();
}

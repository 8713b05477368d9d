// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Recovery punches holes for what it frees, the largest first, and only for a bounded time. So on a
// slow disk it punches few. The rest is reused, or punched later. The test supplies its own clock.
#include <sys/syscall.h>
#include <time.h>

#include "extent_model.h"

static uint64_t clock_ms = 1000, hole_ms;
static unsigned holes;

int clock_gettime(clockid_t id, struct timespec *now) {
    (void)id;
    now->tv_sec = (time_t)(clock_ms / 1000);
    now->tv_nsec = (long)(clock_ms % 1000) * 1000000;
    return 0;
}

int fallocate(int fd, int mode, off_t offset, off_t len) {
    if (mode & FALLOC_FL_PUNCH_HOLE) {
        holes++;
        clock_ms += hole_ms;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

#define BLOCKS 1000u // every other one is dead
#define PAGES 16u
#define DEAD (BLOCKS / 2 * PAGES)
#define LARGE 900u // pages of one dead block
#define SLOW_MS 10u
#define IN_TIME (PM_PURGE_MS / SLOW_MS + 2)

static struct session { struct held live[BLOCKS / 2]; } * kept;

static void take_block(struct held *h, uint64_t pages) {
    model_take(h, pages, 1, false);
    memset(page_word(h->page) + 1, 0xee, 64);
}

// Leaves a heap in which all blocks are in use, as a kill does.
static void before(void) {
    struct held dead;
    pm_options_default();
    fixture_new_heap();
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (i == BLOCKS / 2)
            take_block(&dead, LARGE);
        take_block(i % 2 ? &kept->live[i / 2] : &dead, PAGES);
    }
}

static bool lives(uint64_t page) {
    for (unsigned i = 0; i < BLOCKS / 2; i++)
        if (kept->live[i].page == page)
            return true;
    return false;
}

static void open_again(void) {
    struct pm_error err = {0};
    pm_options_default();
    holes = 0;
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    CHECK_STR(err.text, "");
}

static void recover_here(void) {
    open_again();
    uint32_t top = pm_shard_extents[0].top;
    for (uint32_t i = 1; i < top; i++)
        if (pm_extents[i].state == PM_EXTENT_ACTIVE && !lives(pm_extents[i].page))
            pm_extent_forget(i);
    pm_extent_forgotten(&pm_heap.shard[0]);
    pm_extent_purge_some();
    check_partition();
}

static void check_live(void) {
    for (unsigned i = 0; i < BLOCKS / 2; i++) {
        const struct held *h = &kept->live[i];
        CHECK_EQ(page_word(h->page)[0], h->stamp);
        CHECK_EQ(page_word(h->page + h->pages)[-1], h->stamp);
    }
}

// model_take() checks that an extent which claims to be zero is zero.
static void reuse(void) {
    struct held h[BLOCKS / 4];
    for (unsigned i = 0; i < BLOCKS / 4; i++)
        model_take(&h[i], PAGES, 1, false);
    check_partition();
    check_live();
}

static void slow(void) {
    hole_ms = SLOW_MS;
    recover_here();
    CHECK(holes > 1 && holes <= IN_TIME);
    struct pm_extent_stats s = pm_extent_stats();
    // the large block is in the middle and was punched all the same
    CHECK(s.retained_pages >= LARGE);
    CHECK(s.reclaimed_pages > DEAD / 2 && s.reclaimed_pages < DEAD);
    check_live();
}

static void slow_again(void) {
    hole_ms = SLOW_MS;
    open_again();
    CHECK(holes <= 1); // at most the one at the end of the file
    pm_extent_purge_some();
    CHECK(holes <= IN_TIME);
    check_live();
    reuse();
}

// No request for space waits until all of the rest is punched.
static void misfit(void) {
    struct held h;
    hole_ms = SLOW_MS;
    recover_here();
    for (unsigned i = 0; i < 100; i++) {
        holes = 0;
        model_take(&h, 64, 1, false);
        CHECK(holes <= 2 * 64 / PAGES + 1);
    }
    const struct pm_extent_stats s = pm_extent_stats();
    CHECK(s.reclaimed_pages < s.active_pages);
    check_live();
}

static void decay(void) {
    hole_ms = SLOW_MS;
    recover_here();
    for (unsigned i = 0; i < 10000 && pm_extent_stats().reclaimed_pages; i++) {
        holes = 0;
        clock_ms += 10;
        pm_extent_purge(false);
        CHECK(holes <= 4);
    }
    CHECK_EQ(pm_extent_stats().reclaimed_pages, 0);
    check_live();
}

static void quick(void) {
    recover_here();
    CHECK_EQ(pm_extent_stats().reclaimed_pages, 0);
    CHECK(holes <= BLOCKS / 2 + 2);
    CHECK(fixture_blocks() <= DEAD * PM_PAGE_SIZE);
    check_live();
}

static void share(void) {
    kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(kept != MAP_FAILED);
    CHECK_EQ(in_child(before), 0);
}

static void test_slow_disk(void) {
    share();
    CHECK_EQ(in_child(slow), 0);
    CHECK_EQ(in_child(slow_again), 0);
}

static void test_misfit_on_slow_disk(void) {
    share();
    CHECK_EQ(in_child(misfit), 0);
}

static void test_decay_on_slow_disk(void) {
    share();
    CHECK_EQ(in_child(decay), 0);
}

static void test_quick_medium(void) {
    share();
    CHECK_EQ(in_child(quick), 0);
}

int main(void) {
    RUN_CHILD(slow_disk);
    RUN_CHILD(misfit_on_slow_disk);
    RUN_CHILD(decay_on_slow_disk);
    RUN_CHILD(quick_medium);
    return CHECK_DONE();
}

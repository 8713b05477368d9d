// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Pages of slabs that hold no block in use are given back, and get their space before a block on
// them is handed out. The medium may be full meanwhile, the process may be killed, the slab may
// morph. The test supplies its own clock, and makes the medium full.
#include <sys/syscall.h>
#include <time.h>

#include "blocks/age.h"
#include "blocks/holes.h"
#include "full_medium.h"
#include "morph_fixture.h"
#include "pages/extent_holes.h"
#include "recovery/collect.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

static uint64_t clock_ms = 100000000;

int clock_gettime(clockid_t id, struct timespec *now) {
    (void)id;
    now->tv_sec = (time_t)(clock_ms / 1000);
    now->tv_nsec = (long)(clock_ms % 1000) * 1000000;
    return 0;
}

#define KIB 24u // the class of 1 KiB
#define SLABS 8u
#define PER (PM_SLAB_SIZE / 1024)
#define PAGES_OF(slabs) ((slabs)*PM_SLAB_PAGES)

static uint64_t pages_now(void) { return fixture_blocks() / PM_PAGE_SIZE; }

static void write_stamp(void *block, uint64_t stamp) {
    for (unsigned i = 0; i < 1024 / 8; i++)
        ((uint64_t *)block)[i] = stamp + i;
}

static bool stamped(const void *block, uint64_t stamp) {
    for (unsigned i = 0; i < 1024 / 8; i++)
        if (((const uint64_t *)block)[i] != stamp + i)
            return false;
    return true;
}

// Every block of SLABS slabs was written. One of each slab is in use.
static void make_sparse(void) {
    for (unsigned s = 0; s < SLABS; s++) {
        MUST(take(KIB, kept[s], PER) == PER);
        for (unsigned i = 0; i < PER; i++)
            write_stamp(kept[s][i], s * 1000 + i);
    }
    for (unsigned s = 0; s < SLABS; s++)
        pm_arena_return(KIB, kept[s] + 1, PER - 1);
}

static void check_kept(void) {
    for (unsigned s = 0; s < SLABS; s++)
        CHECK(stamped(kept[s][0], s * 1000));
    good();
}

static void test_trim(void) {
    start();
    make_sparse();
    uint64_t before = pages_now();
    CHECK_EQ(pm_age_punch(), SLABS * (PM_SLAB_PAGES - 1));
    CHECK_EQ(before - pages_now(), SLABS * (PM_SLAB_PAGES - 1));
    CHECK_EQ(pm_extent_stats().holes, SLABS * (PM_SLAB_PAGES - 1));
    check_kept();
    CHECK_EQ(pm_age_punch(), 0); // there is no more
    CHECK_EQ(before - pages_now(), SLABS * (PM_SLAB_PAGES - 1));
}

// Blocks on pages that have space come first. Each other one gets its page before it is handed out.
static void test_handed_out_again(void) {
    start();
    make_sparse();
    pm_age_punch();
    uint64_t before = pages_now();
    void *block[PER * SLABS];
    MUST(take(KIB, block, 3) == 3);
    CHECK_EQ(pages_now(), before);
    MUST(take(KIB, block + 3, 8) == 8);
    CHECK(pages_now() - before <= 2);
    for (unsigned i = 11; i < SLABS * (PER - 1); i += 1)
        MUST(take(KIB, block + i, 1) == 1);
    CHECK_EQ(pm_extent_stats().holes, 0);
    CHECK_EQ(pages_now() - before, SLABS * (PM_SLAB_PAGES - 1));
    for (unsigned i = 0; i < SLABS * (PER - 1); i++)
        write_stamp(block[i], 77000 + i);
    for (unsigned i = 0; i < SLABS * (PER - 1); i++)
        CHECK(stamped(block[i], 77000 + i));
    check_kept();
}

// Blocks of all sizes, also such as span pages, in random order.
static void test_all_classes(void) {
    start();
    static struct {
        unsigned char *at;
        unsigned cls;
    } block[4000];
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned i = 0; i < 4000; i++) {
            unsigned cls = 1 + (unsigned)rnd(PM_CLASSES), size = pm_classes[cls].size;
            void *p;
            if (block[i].at && rnd(8) != 0) {
                size = pm_classes[block[i].cls].size;
                CHECK(block[i].at[0] == i % 251 && block[i].at[size - 1] == i % 251);
                p = block[i].at;
                pm_arena_return(block[i].cls, &p, 1);
                block[i].at = NULL;
            } else if (!block[i].at && rnd(8) == 0) {
                MUST(pm_arena_fill(&pm_arenas[0], cls, &p, 1) == 1);
                block[i].at = p, block[i].cls = cls;
                memset(p, (int)(i % 251), size);
            }
        }
        pm_age_punch();
        good();
    }
    CHECK(pm_extent_stats().holes > 0);
}

// No block on a hole is handed out while the medium is full; those with space all are.
static void test_full_medium(void) {
    start();
    make_sparse();
    pm_age_punch();
    full = true;
    void *block[PER];
    CHECK_EQ(take(KIB, block, PER), SLABS * 3);
    CHECK_EQ(pm_extent_stats().holes, SLABS * (PM_SLAB_PAGES - 1));
    CHECK_EQ(take(KIB, block + 30, 1), 0);
    pm_arena_return(KIB, block, 3);
    CHECK_EQ(take(KIB, block, 4), 3);
    full = false;
    CHECK_EQ(take(KIB, block + 30, 8), 8);
    check_kept();
}

static void test_morph_backs_pages(void) {
    start();
    make_sparse();
    pm_age_punch();
    uint32_t slab = pm_slab_of(kept[0][0]);
    full = true;
    CHECK(!pm_morph(slab, 0, 5));
    CHECK_EQ(pm_vslabs[slab].size_class, KIB);
    good();
    full = false;
    pm_bin_remove(&pm_arenas[0].bin[KIB], slab);
    CHECK(pm_morph(slab, 0, 5));
    CHECK_EQ(pm_vslabs[slab].holes, 0);
    CHECK_EQ(pm_extent_stats().holes, (SLABS - 1) * (PM_SLAB_PAGES - 1));
    CHECK(stamped(kept[0][0], 0));
}

// An empty slab with holes becomes free space, from which a slab is made again.
static void test_destroyed(void) {
    start();
    make_sparse();
    pm_age_punch();
    for (unsigned s = 0; s < SLABS; s++)
        pm_arena_return(KIB, &kept[s][0], 1);
    CHECK_EQ(pm_arenas_drop_empty(), SLABS);
    CHECK_EQ(pm_extent_stats().holes, 0);
    good();
    full = true; // what is reclaimed may have holes, and is asked for again
    CHECK_EQ(take(KIB, kept[0], 1), 0);
    full = false;
    MUST(take(KIB, kept[0], PER) == PER);
    for (unsigned i = 0; i < PER; i++)
        write_stamp(kept[0][i], i);
    good();
}

// ---- age ----------------------------------------------------------------------------------------

static void pass(uint64_t ms) {
    clock_ms += ms;
    pm_age_all();
}

// Only what was not used for half of the decay time goes, and only where it is half of a slab.
static void test_age(void) {
    start();
    uint64_t half = pm_options.decay_ms.number / 2;
    make_sparse();
    void *block[PER];
    MUST(take(KIB, block, PER / 2) == PER / 2); // of one slab
    uint32_t used = pm_slab_of(block[0]);
    pass(half);
    pass(half - 1);
    CHECK_EQ(pm_extent_stats().holes, 0);
    pm_arena_return(KIB, block, 1);
    pass(1);
    CHECK_EQ(pm_extent_stats().holes, (SLABS - 1) * (PM_SLAB_PAGES - 1));
    CHECK_EQ(pm_vslabs[used].holes, 0);
    pass(half);
    pass(half);
    CHECK_EQ(pm_vslabs[used].holes, 0);
    pm_arena_return(KIB, block + 1, PER / 2 - 1);
    pass(half);
    CHECK_EQ(pm_vslabs[used].holes, 0);
    pass(half);
    CHECK_EQ(pm_extent_stats().holes, SLABS * (PM_SLAB_PAGES - 1));
    unsigned before = punches;
    pass(half); // there is nothing left to do
    pass(half);
    CHECK_EQ(punches, before);
    check_kept();
}

static void test_last_empty_slab(void) {
    start();
    MUST(take(KIB, kept[0], PER) == PER);
    pm_arena_return(KIB, kept[0], PER);
    CHECK_EQ(pm_extent_stats().slab_pages, PM_SLAB_PAGES);
    pass(pm_options.decay_ms.number / 2);
    CHECK_EQ(pm_extent_stats().slab_pages, PM_SLAB_PAGES);
    for (unsigned i = 0; i < 4; i++)
        pass(pm_options.decay_ms.number / 2);
    CHECK_EQ(pm_extent_stats().slab_pages, 0);
    good();
}

// ---- after a kill -------------------------------------------------------------------------------

static struct { void *head, *stale; } * shared;

// A list of the blocks in use, one of each slab. The first also names a free block in a hole.
static void leave_killed(void) {
    start();
    make_sparse();
    for (unsigned s = 0; s < SLABS; s++)
        ((void **)kept[s][0])[0] = s + 1 < SLABS ? kept[s + 1][0] : NULL;
    ((void **)kept[0][0])[1] = kept[0][PER - 1];
    pm_age_punch();
    shared->head = kept[0][0];
    shared->stale = kept[0][PER - 1];
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)shared->head);
}

static void recover_killed(void) {
    struct pm_error err = {0};
    struct pm_recovery found;
    struct stat st;
    char path[128];
    struct pm_recover_options how = {.write = true, .mark = {.markers = 2}};
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    CHECK_EQ(stat(path, &st), 0);
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(pm_recover(&how, &found, &err), PM_OK);
    CHECK_EQ(found.live_objects, SLABS + 1);
    // Nobody has read a hole, also not the one in which a block is alive.
    CHECK(fixture_blocks() <= (uint64_t)st.st_blocks * 512);
    CHECK_EQ(((uint64_t *)shared->stale)[0], 0); // reads as zeroes; only here
    uint64_t s = 0;
    for (void **block = shared->head; block; block = block[0], s++)
        for (unsigned i = 2; i < 1024 / 8; i++)
            CHECK_EQ(((uint64_t *)(void *)block)[i], s * 1000 + i);
    CHECK_EQ(s, SLABS);
    good();
}

static void use_recovered(void) {
    recover_killed();
    full = true;
    void *block[SLABS * PER];
    unsigned got = take(KIB, block, SLABS * PER);
    CHECK_EQ(got, SLABS * 3);
    full = false;
    got += take(KIB, block + got, SLABS * (PER - 1) - 1 - got);
    CHECK_EQ(got, SLABS * (PER - 1) - 1);
    for (unsigned i = 0; i < got; i++)
        write_stamp(block[i], i);
    good();
    pm_arena_return(KIB, block, got);
    pm_age_punch();
    good();
}

static bool asks;

off_t lseek(int fd, off_t offset, int whence) {
    asks |= whence == SEEK_HOLE || whence == SEEK_DATA;
    return (off_t)syscall(SYS_lseek, fd, offset, whence);
}

static void keep_killed(uint64_t collect) {
    struct pm_error err = {0};
    struct pm_recovery found;
    struct pm_recover_options how = {.write = true, .mark = {.markers = 2}};
    pm_options_default();
    pm_options.collect.number = collect;
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(pm_recover(&how, &found, &err), PM_OK);
    CHECK(found.uncollected && !asks);
    good();
}

// Under `later` nobody asks for holes, and each block of an old slab gets its page nevertheless.
static void use_kept(void) {
    keep_killed(PM_COLLECT_LATER);
    void *block[1] = {shared->head}, *again[1];
    pm_arena_return(KIB, block, 1);
    good();
    full = true;
    CHECK_EQ(take(KIB, again, 1), 0);
    full = false;
    CHECK_EQ(take(KIB, again, 1), 1);
    CHECK(again[0] == block[0]);
    write_stamp(block[0], 1);
    good();
}

// A collection of what was kept asks first, reads no hole, and hands none out.
static void collect_kept(void) {
    keep_killed(PM_COLLECT_API);
    struct pm_error err = {0};
    struct pm_recovery found;
    struct pm_mark_options how = {.markers = 2};
    void *block[SLABS * PER];
    uint64_t before = fixture_blocks();
    CHECK_EQ(pm_collect(&how, &found, &err), PM_OK);
    CHECK(asks);
    CHECK_EQ(found.live_objects, SLABS + 1);
    CHECK(fixture_blocks() <= before);
    good();
    full = true;
    CHECK_EQ(take(KIB, block, SLABS * PER), SLABS * 3);
    full = false;
    CHECK_EQ(take(KIB, block, 1), 1);
    good();
}

static void after_a_kill(void (*use)(void)) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    CHECK_EQ(in_child(leave_killed), 0);
    CHECK_EQ(in_child(use), 0);
}

static void test_killed(void) { after_a_kill(use_recovered); }
static void test_killed_and_kept(void) { after_a_kill(use_kept); }
static void test_killed_and_collected(void) { after_a_kill(collect_kept); }

// ---- off media ----------------------------------------------------------------------------------

static uint64_t resident(const void *at, size_t len) {
    unsigned char there[PM_SLAB_PAGES];
    uint64_t count = 0;
    CHECK_EQ(mincore((void *)(uintptr_t)at, len, there), 0);
    for (size_t i = 0; i < len / PM_PAGE_SIZE; i++)
        count += there[i] & 1;
    return count;
}

static void test_volatile(void) {
    struct pm_error err = {0};
    pm_options_default();
    fixture_tables();
    MUST(pm_heap_volatile(&err) == PM_OK);
    make_sparse();
    const char *slab = pm_slab_start(pm_slab_of(kept[1][0]));
    CHECK_EQ(resident(slab, PM_SLAB_SIZE), PM_SLAB_PAGES);
    CHECK_EQ(pm_age_punch(), SLABS * (PM_SLAB_PAGES - 1));
    CHECK_EQ(resident(slab, PM_SLAB_SIZE), 1);
    void *block[PER];
    MUST(take(KIB, block, PER) == PER);
    for (unsigned i = 0; i < PER; i++)
        write_stamp(block[i], i);
    check_kept();
}

int main(void) {
    RUN_CHILD(trim);
    RUN_CHILD(handed_out_again);
    RUN_CHILD(all_classes);
    RUN_CHILD(full_medium);
    RUN_CHILD(morph_backs_pages);
    RUN_CHILD(destroyed);
    RUN_CHILD(age);
    RUN_CHILD(last_empty_slab);
    RUN_CHILD(killed);
    RUN_CHILD(killed_and_kept);
    RUN_CHILD(killed_and_collected);
    RUN_CHILD(volatile);
    return CHECK_DONE();
}

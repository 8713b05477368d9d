// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The first slab of a bin begins without space, and each page gets it before a block on it is
// handed out: on a full medium, after a kill, and in private memory.
#include <sys/mman.h>
#include <sys/stat.h>

#include "blocks/holes.h"
#include "blocks/kinds.h"
#include "fork/private.h"
#include "full_medium.h"
#include "morph_fixture.h"
#include "pages/extent_holes.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

#define SMALL 4u // the class of 64 bytes
#define PER (PM_SLAB_SIZE / 64)

static void *block[PER];

static struct pm_vslab *slab_of(const void *p) { return &pm_vslabs[pm_slab_of(p)]; }
static uint64_t pages_now(void) { return fixture_blocks() / PM_PAGE_SIZE; }

static void stamp(unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++)
        memset(block[i], (int)(i % 251 + 1), 64);
}
static bool stamped(unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++)
        for (unsigned byte = 0; byte < 64; byte++)
            if (((unsigned char *)block[i])[byte] != i % 251 + 1)
                return false;
    return true;
}

static void test_few_blocks_of_each_class(void) {
    start();
    uint64_t before = pages_now(), bytes = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        MUST(take(cls, block, 3) == 3);
        bytes += (3 * pm_classes[cls].size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
        for (unsigned i = 0; i < 3; i++)
            memset(block[i], 1, pm_classes[cls].size);
    }
    CHECK_EQ((pages_now() - before) << PM_PAGE_SHIFT, bytes);
    good();
}

// Page by page it would take 16 calls.
static void test_filled(void) {
    start();
    MUST(take(SMALL, block, 1) == 1);
    unsigned before = allocations;
    for (unsigned i = 1; i < PER; i++)
        MUST(take(SMALL, block + i, 1) == 1);
    CHECK_EQ(allocations - before, 2);
    CHECK_EQ(slab_of(block[0])->holes, 0);
    CHECK_EQ(pm_extent_stats().holes, 0);
    stamp(0, PER);
    CHECK(stamped(0, PER));
    void *next;
    MUST(take(SMALL, &next, 1) == 1);
    CHECK(slab_of(next) != slab_of(block[0]) && !slab_of(next)->holes); // not the first of its bin
    good();
}

static void test_full_medium(void) {
    start();
    MUST(take(SMALL, block, 3) == 3);
    full = true;
    unsigned got = 3 + take(SMALL, block + 3, PER - 3);
    CHECK_EQ(got, PM_PAGE_SIZE / 64);
    stamp(0, got);
    good();
    full = false;
    CHECK_EQ(take(SMALL, block + got, PER - got), PER - got);
    stamp(got, PER);
    CHECK(stamped(0, PER));
    good();
}

static void test_morph_backs_pages(void) {
    start();
    MUST(take(SMALL, block, 40) == 40);
    stamp(0, 40);
    uint32_t slab = pm_slab_of(block[0]);
    pm_bin_remove(&pm_arenas[0].bin[SMALL], slab);
    CHECK(pm_morph(slab, 0, SMALL + 2));
    CHECK_EQ(pm_vslabs[slab].holes, 0);
    CHECK_EQ(pm_extent_stats().holes, 0);
    CHECK(stamped(0, 40));
}

static void test_destroyed(void) {
    start();
    MUST(take(SMALL, block, 3) == 3);
    pm_arena_return(SMALL, block, 3);
    CHECK_EQ(pm_arenas_drop_empty(), 1);
    CHECK_EQ(pm_extent_stats().holes, 0);
    good();
    MUST(take(SMALL, block, PER) == PER);
    stamp(0, PER);
    good();
}

static void test_behind_the_bound(void) {
    start();
    MUST(pm_extent_publish(pm_extent_take(PM_BARE_END >> PM_PAGE_SHIFT, 1), false));
    MUST(take(SMALL, block, 3) == 3);
    CHECK_EQ(slab_of(block[0])->holes, 0);
    good();
}

static void test_pinned_blocks_have_space(void) {
    start();
    uint16_t arena = 0;
    while (!pm_kind_is_pinned(pm_kind_of_arena(arena)))
        arena++;
    uint32_t slab = pm_slab_create_bare(SMALL, arena, 0);
    MUST(slab != 0);
    CHECK_EQ(pm_vslabs[slab - 1].holes, 0);
}

// A store to the private mapping of a hole would take space in the file.
static void test_private_memory(void) {
    start();
    MUST(take(SMALL, block, 3) == 3);
    stamp(0, 3);
    uint64_t before = pages_now();
    CHECK(pm_private_enter(false));
    full = true;
    MUST(take(SMALL, block + 3, PER - 3) == PER - 3);
    stamp(3, PER);
    CHECK(stamped(0, PER));
    CHECK_EQ(pages_now(), before);
}

// ---- after a kill -------------------------------------------------------------------------------

static void **shared; // the head of a list of three blocks; the first one names a free one as well

static void leave_killed(void) {
    start();
    MUST(take(SMALL, block, 3) == 3);
    stamp(0, 3);
    for (unsigned i = 0; i < 3; i++)
        ((void **)block[i])[0] = i < 2 ? block[i + 1] : NULL;
    ((void **)block[0])[1] = (char *)block[0] + PM_SLAB_SIZE / 2;
    *shared = block[0];
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)*shared);
}

static void use_recovered(void) {
    struct pm_error err = {0};
    struct pm_recovery found;
    struct stat st;
    char path[128];
    struct pm_recover_options how = {.write = true, .mark = {.markers = 1}};
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    CHECK_EQ(stat(path, &st), 0);
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    CHECK_EQ(pm_recover(&how, &found, &err), PM_OK);
    CHECK_EQ(found.live_objects, 4);
    CHECK(fixture_blocks() <= (uint64_t)st.st_blocks * 512); // nobody has read a hole
    good();
    full = true;
    unsigned got = take(SMALL, block, PER);
    CHECK_EQ(got, PM_PAGE_SIZE / 64 - 3);
    stamp(0, got);
    full = false;
    CHECK_EQ(take(SMALL, block + got, PER - 4 - got), PER - 4 - got);
    stamp(got, PER - 4);
    CHECK(stamped(0, PER - 4));
    good();
}

static void test_killed(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    CHECK_EQ(in_child(leave_killed), 0);
    CHECK_EQ(in_child(use_recovered), 0);
}

int main(void) {
    RUN_CHILD(few_blocks_of_each_class);
    RUN_CHILD(filled);
    RUN_CHILD(full_medium);
    RUN_CHILD(morph_backs_pages);
    RUN_CHILD(destroyed);
    RUN_CHILD(behind_the_bound);
    RUN_CHILD(pinned_blocks_have_space);
    RUN_CHILD(private_memory);
    RUN_CHILD(killed);
    return CHECK_DONE();
}

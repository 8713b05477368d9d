// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A large block has space on the file system for every page, whatever its extent held before.
#include "blocks/extent_cache.h"
#include "heap_fixture.h"
#include "media/backing/backing.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "process/start.h"

#define SIZE ((size_t)1000 << 10)

static void start(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_DECAY_MS", "3600000", 1); // nothing leaves the caches by age
    pm_process_start();
    pm_free(pm_malloc(SIZE)); // the first look at the clock
}

static void leave_a_block(void) {
    start();
    MUST(pmalloc_set_root(0, pm_malloc(SIZE)) == 0);
    MUST(pm_process_end());
}

static uint64_t offset_of(const char *p) { return (uint64_t)(uintptr_t)p - pm_base; }

// Nobody knows whether each page of an old block has space: its end may have been given back. So
// its extent is not handed out as it is. On a full file system a store to it would fail.
static void test_extent_of_an_old_block(void) {
    MUST(in_child(leave_a_block) == 0);
    start();
    char *p = pmalloc_get_root(0);
    size_t size = pm_usable_size(p);
    uint64_t blocks = fixture_blocks();
    MUST(pm_heap_release_space(offset_of(p) + size - PM_PAGE_SIZE, PM_PAGE_SIZE));
    MUST(fixture_blocks() < blocks);
    CHECK_EQ(pmalloc_set_root(0, NULL), 0);
    uint64_t cached = pm_extent_stats().cached;
    pm_free(p);
    CHECK_EQ(pm_extent_stats().cached, cached);
    for (unsigned i = 0; i < 2; i++) { // one may come from the cache
        off_t first = (off_t)offset_of(pm_malloc(size));
        CHECK(lseek(pm_heap.shard[0].data.fd, first, SEEK_HOLE) >= first + (off_t)size);
    }
}

int main(void) {
    RUN_CHILD(extent_of_an_old_block);
    return check_failures != 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Where tags stand: each in a place of its own, in the runs of its slab, and densely.
#include "pages/pagemap.h"

#include <string.h>

#include "check.h"

#define CHUNK 65536u // the tags of a MiB
#define FIRST (3 * (uint64_t)CHUNK)

static void test_each_granule_has_its_place(void) {
    static uint8_t seen[CHUNK];
    memset(seen, 0, sizeof seen);
    for (uint64_t g = FIRST; g < FIRST + CHUNK; g++) {
        uint64_t i = pm_tag_index(g);
        CHECK(i >= FIRST && i < FIRST + CHUNK && !seen[i - FIRST]++);
        CHECK_EQ(pm_tag_granule(i), g);
    }
}

static void test_a_slab_has_runs(void) {
    for (uint64_t g = FIRST; g < FIRST + CHUNK; g++) {
        uint64_t slab = g / PM_SLAB_BLOCKS_MAX, run = pm_tag_run(slab, g % PM_TAG_ROWS);
        CHECK(pm_tag_index(g) >= run && pm_tag_index(g) < run + PM_TAG_RUN);
    }
}

// Blocks of a MiB touch so many pages of tags.
static unsigned pages_for(unsigned size) {
    bool touched[CHUNK / PM_PAGE_SIZE] = {false};
    unsigned pages = 0;
    for (uint64_t g = FIRST; g < FIRST + CHUNK; g += size / 16) {
        bool *page = &touched[(pm_tag_index(g) - FIRST) / PM_PAGE_SIZE];
        pages += !*page;
        *page = true;
    }
    return pages;
}

static void test_pages(void) {
    CHECK_EQ(pages_for(16), 16);
    CHECK_EQ(pages_for(32), 8);
    CHECK_EQ(pages_for(64), 4);
    CHECK_EQ(pages_for(192), 4);
    CHECK_EQ(pages_for(128), 2);
    CHECK_EQ(pages_for(256), 1);
    CHECK_EQ(pages_for(4096), 1);
}

// In one set of a cache of 8 ways and 4096 bytes a way, the tags of neighbours leave each other
// room.
static void test_neighbours_are_apart(void) {
    for (uint64_t g = FIRST; g + 16 < FIRST + CHUNK; g++) {
        unsigned same = 0;
        for (uint64_t next = g + 1; next < g + 16; next++)
            same += pm_tag_index(next) % 4096 / 64 == pm_tag_index(g) % 4096 / 64;
        CHECK(same < 8);
    }
}

int main(void) {
    RUN(each_granule_has_its_place);
    RUN(a_slab_has_runs);
    RUN(pages);
    RUN(neighbours_are_apart);
    return CHECK_DONE();
}

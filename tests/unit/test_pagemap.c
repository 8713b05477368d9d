// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Where tags and the entries of the page map stand: each in a place of its own, and densely.
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

// The pages of 32 MiB.
#define GROUP ((uint64_t)PM_SLAB_PAGES * PM_MAP_SLABS)

static void test_each_page_has_its_place(void) {
    static uint8_t seen[1 << 13];
    _Static_assert(sizeof seen == PM_SLAB_PAGES * PM_MAP_SLABS, "one for each");
    memset(seen, 0, sizeof seen);
    for (uint64_t page = 5 * GROUP; page < 6 * GROUP; page++) {
        uint64_t i = pm_page_map_index(page);
        CHECK(i >= 5 * GROUP && i < 6 * GROUP && !seen[i - 5 * GROUP]++);
    }
}

static void test_slabs_need_one_page_of_the_map(void) {
    for (uint64_t page = 5 * GROUP; page < 6 * GROUP; page += PM_SLAB_PAGES) {
        uint64_t first = pm_page_map_index(page),
                 last = pm_page_map_index(page + PM_SLAB_PAGES - 1);
        CHECK((first - 5 * GROUP) * sizeof *pm_page_map < PM_PAGE_SIZE);
        CHECK((last - 5 * GROUP) * sizeof *pm_page_map < PM_PAGE_SIZE);
    }
}

int main(void) {
    RUN(each_granule_has_its_place);
    RUN(a_slab_has_runs);
    RUN(pages);
    RUN(neighbours_are_apart);
    RUN(each_page_has_its_place);
    RUN(slabs_need_one_page_of_the_map);
    return CHECK_DONE();
}

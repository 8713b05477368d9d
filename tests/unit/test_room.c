// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Room behind blocks that grow: it takes no space, it is what the block grows into, and whoever
// finds no memory gets it.
#include "blocks/room.h"

#include "blocks/verify.h"
#include "heap_fixture.h"
#include "process/entry.h"
#include "process/start.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void start(const char *limit, const char *reserve) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_LIMIT", limit, 1);
    setenv("PMALLOC_RESERVE", reserve, 1);
    setenv("PMALLOC_DECAY_MS", "3600000", 1);
    pm_process_start();
}

static void good(void) {
    struct pm_error err = {0};
    CHECK_EQ(pm_verify(true, &err), PM_OK);
    CHECK_STR(err.text, "");
}

static const struct pm_extent *extent_of(const char *p) {
    return &pm_extents[*pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT)];
}

// A block of `size` bytes with room behind it.
static char *grown(size_t size) {
    char *p = pm_malloc(size - 64 * KIB), *beside = pm_malloc(64 * KIB);
    memset(p, 'g', size - 64 * KIB);
    p = pm_realloc(p, size);
    MUST(p && beside && extent_of(p)->used);
    memset(p + size - 64 * KIB, 'g', 64 * KIB);
    return p;
}

static void check_bytes(const char *p, size_t size) {
    for (size_t i = 0; i < size; i += 64)
        if (p[i] != 'g') {
            CHECK_EQ(i, size);
            return;
        }
}

static void test_growth_into_room(void) {
    start("1G", "lazy");
    char *p = grown(MIB), *first = p;
    good();
    CHECK_EQ(pm_usable_size(p), MIB);
    CHECK_EQ(pm_extent_bytes(extent_of(p)), 4 * MIB);
    uint64_t blocks = fixture_blocks();
    for (size_t size = MIB; size < 4 * MIB; size += 64 * KIB) {
        p = pm_realloc(p, size);
        CHECK(p == first && pm_usable_size(p) >= size && pm_usable_size(p) <= size + size / 4);
    }
    CHECK_EQ(fixture_blocks(), blocks); // nothing was touched
    check_bytes(p, MIB);
    for (size_t i = MIB; i < 4 * MIB - 64 * KIB; i++)
        if (p[i]) {
            CHECK_EQ(i, 0);
            break;
        }
    good();
    CHECK(pm_realloc(p, 4 * MIB) == first && extent_of(p)->used == 0);
    p = pm_realloc(p, 5 * MIB);
    check_bytes(p, MIB);
    good();
    pm_free(p);
    good();
}

static void test_shorter_again(void) {
    start("1G", "lazy");
    char *p = grown(MIB), *first = p;
    CHECK(pm_realloc(p, 512 * KIB) == first);
    CHECK_EQ(pm_extent_bytes(extent_of(p)), 512 * KIB);
    CHECK_EQ(pm_usable_size(p), 512 * KIB);
    check_bytes(p, 512 * KIB);
    good();
}

// What a block of before has left is neither in the room nor in the way.
static void test_room_of_used_pages(void) {
    start("1G", "lazy");
    char *old = pm_malloc(64 * MIB);
    memset(old, 'x', 64 * MIB);
    pm_free(old);
    char *p = grown(8 * MIB);
    check_bytes(p, 8 * MIB);
    good();
    CHECK(p[8 * MIB] == 0 && p[pm_extent_bytes(extent_of(p)) - 1] == 0);
}

// At the limit of the heap everything is handed out, room as well.
static void test_room_is_taken_back(void) {
    start("64M", "lazy");
    char *p = grown(4 * MIB), *q;
    CHECK_EQ(pm_extent_bytes(extent_of(p)), 16 * MIB);
    size_t total = 4 * MIB;
    while ((q = pm_malloc(MIB)) != NULL) {
        memset(q, 'o', MIB);
        total += MIB;
    }
    CHECK(total >= 56 * MIB);
    CHECK_EQ(extent_of(p)->used, 0);
    CHECK_EQ(pm_extent_bytes(extent_of(p)), 4 * MIB);
    check_bytes(p, 4 * MIB);
    good();
}

// Half of the limit is not for room.
static void test_no_room(void) {
    start("16M", "lazy");
    char *p = pm_malloc(4 * MIB), *beside = pm_malloc(64 * KIB);
    MUST(p && beside);
    p = pm_realloc(p, 4 * MIB + 64 * KIB);
    CHECK(p && extent_of(p)->used == 0);
    good();
}

static void test_strict(void) {
    start("1G", "strict");
    char *p = pm_malloc(MIB), *beside = pm_malloc(64 * KIB);
    MUST(p && beside);
    p = pm_realloc(p, MIB + 64 * KIB);
    CHECK(p && extent_of(p)->used == 0);
    good();
}

int main(void) {
    RUN_CHILD(growth_into_room);
    RUN_CHILD(shorter_again);
    RUN_CHILD(room_of_used_pages);
    RUN_CHILD(room_is_taken_back);
    RUN_CHILD(no_room);
    RUN_CHILD(strict);
    return check_failures != 0;
}

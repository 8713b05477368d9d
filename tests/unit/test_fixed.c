// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap on a fixed medium: the words that stand for lengths, and the layout.
#include <sys/file.h>

#include "base/crc.h"
#include "heap_fixture.h"
#include "media/fixed.h"
#include "media/fixed_layout.h"
#include "media/fixed_make.h"
#include "media/heap_space.h"
#include "media/journal_format.h"
#include "pages/extent_holes.h"

#define BYTES ((uint64_t)32 << 20)

static struct pm_error err;

static void make(void) {
    const char *path[] = {fixture_dir};
    struct pm_fixed_made made;
    pm_options_default();
    MUST(pm_fixed_make(path, 1, &(struct pm_fixed_wish){.size = BYTES}, &made, &err) == PM_OK);
    CHECK(made.created && !made.device && made.zeroed);
    CHECK_EQ(made.data + made.head, BYTES);
}

static struct pm_shard *shard(void) { return &pm_heap.shard[0]; }

// ---- what is durable ----------------------------------------------------------------------------

static const uint64_t *watched;
static uint64_t flushed, durable;

static void note_flush(const void *at, size_t len) {
    if ((uintptr_t)watched - (uintptr_t)at < len)
        flushed = *watched;
}
static void note_drain(void) { durable = flushed; }

static void test_a_length_is_durable_before_it_counts(void) {
    make();
    fixture_new_heap();
    watched = shard()->data.length;
    flushed = durable = *watched;
    pm_persist = (struct pm_persist_ops){note_flush, note_drain};
    for (unsigned i = 1; i <= 3; i++) {
        MUST(pm_frontier_grow(shard(), 1));
        CHECK_EQ(shard()->data.size, shard()->frontier);
        CHECK_EQ(durable, *watched);
        CHECK(pm_sealed(durable, PM_SALT_LENGTH(PM_JOURNAL_DATA)));
        CHECK_EQ(pm_unseal(durable), shard()->frontier >> PM_PAGE_SHIFT);
    }
}

static void test_it_ends_where_the_medium_ends(void) {
    make();
    fixture_new_heap();
    uint64_t least = shard()->limit;
    CHECK(least <= shard()->data.room && least > BYTES / 2);
    while (pm_frontier_grow(shard(), 1)) {
    }
    CHECK_EQ(shard()->frontier, least);
    uint64_t word = *shard()->data.length;
    errno = 0;
    CHECK(!pm_fixed_set_length(&shard()->data, shard()->data.room + 1));
    CHECK_EQ(errno, ENOSPC);
    CHECK_EQ(*shard()->data.length, word);
    CHECK(!pm_shard_set_frontier(shard(), 0));
    CHECK_EQ(*shard()->data.length, word);
    CHECK_EQ(shard()->frontier, least);
}

static void grow_once(void) {
    fixture_new_heap();
    MUST(pm_frontier_grow(shard(), 1));
}

static void test_the_length_is_there_again(void) {
    make();
    MUST(in_child(grow_once) == 0);
    MUST(pm_heap_open(fixture_dir, PM_OPEN_READONLY, false, &err) == PM_OK);
    CHECK_EQ(shard()->data.size, (uint64_t)PM_REGION_SIZE);
    CHECK_EQ(shard()->frontier, (uint64_t)PM_REGION_SIZE);
    pm_heap_release();
    CHECK(!pm_fixed_is_open() && pm_heap.dir_fd < 0 && !shard()->data.length);
}

static void test_descriptors_closed_by_the_program(void) {
    make();
    fixture_new_heap();
    MUST(close_range(3, ~0u, 0) == 0);
    CHECK(pm_frontier_grow(shard(), 1));
    CHECK(pm_file_ready(&shard()->data) && pm_file_ready(&pm_heap.super_file));
    pid_t pid = fork();
    if (pid == 0) { // the mapping of the head keeps the lock
        int fd = open(fixture_dir, O_RDONLY);
        _exit(flock(fd, LOCK_EX | LOCK_NB) == 0);
    }
    int status = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

// ---- space --------------------------------------------------------------------------------------

static void test_released_space_stays(void) {
    make();
    fixture_new_heap();
    MUST(pm_frontier_grow(shard(), 1));
    char *at = pm_heap_at(0);
    uint64_t blocks = fixture_blocks();
    memset(at, 7, PM_PAGE_SIZE);
    CHECK(pm_heap_fresh_is_zero() && !pm_heap_released_is_zero());
    CHECK(pm_heap_release_space(0, PM_REGION_SIZE));
    CHECK_EQ(at[5], 7);
    CHECK_EQ(fixture_blocks(), blocks);
    CHECK(!pm_extent_may_punch());
}

// ---- the layout ---------------------------------------------------------------------------------

static struct pm_layout layout(void) {
    int fd = open(fixture_dir, O_RDONLY);
    const struct pm_layout *there = pm_fixed_peek(fd);
    MUST(there);
    struct pm_layout copy = *there;
    pm_fixed_unpeek(there);
    close(fd);
    return copy;
}

static int check(struct pm_layout l) {
    l.crc = pm_layout_crc(&l);
    return pm_layout_check(&l, fixture_dir, &err);
}

static void test_layouts_that_are_refused(void) {
    make();
    const struct pm_layout good = layout();
    CHECK_EQ(check(good), PM_OK);
    struct pm_layout l = good;
    l.crc ^= 1;
    CHECK_EQ(pm_layout_check(&l, fixture_dir, &err), PM_DAMAGE);
    l = good;
    l.magic = 0;
    CHECK_EQ(check(l), PM_OPERATIONAL);
    l = good;
    l.version++;
    CHECK_EQ(check(l), PM_OPERATIONAL);
    l = good;
    l.flags |= 1ull << 63; // of a later build
    CHECK_EQ(check(l), PM_OPERATIONAL);
    CHECK(pm_heap.foreign);
    l = good;
    l.part[PM_JOURNAL_DATA].at += PM_PAGE_SIZE; // cannot be mapped by 2 MiB
    CHECK_EQ(check(l), PM_DAMAGE);
    l = good;
    l.part[PM_JOURNAL_DATA].room += PM_FIXED_ALIGN;
    CHECK_EQ(check(l), PM_DAMAGE);
    l = good;
    l.part[PM_JOURNAL_LOG].room += BYTES; // into heap.0
    CHECK_EQ(check(l), PM_DAMAGE);
}

static void test_frozen(void) {
    CHECK_EQ(sizeof(struct pm_layout), 4096);
    CHECK_EQ(sizeof(struct pm_lengths), 4096);
    CHECK_EQ(offsetof(struct pm_layout, bytes), 16);
    CHECK_EQ(offsetof(struct pm_layout, uuid), 32);
    CHECK_EQ(PM_FIXED_ALIGN, 2 << 20);
}

int main(void) {
    RUN_CHILD(a_length_is_durable_before_it_counts);
    RUN_CHILD(it_ends_where_the_medium_ends);
    RUN_CHILD(the_length_is_there_again);
    RUN_CHILD(descriptors_closed_by_the_program);
    RUN_CHILD(released_space_stays);
    RUN_CHILD(layouts_that_are_refused);
    RUN_CHILD(frozen);
    return CHECK_DONE();
}

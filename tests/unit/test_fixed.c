// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap on a fixed medium: the words that stand for lengths, and the layout.
#include <sys/file.h>

#include "base/crc.h"
#include "heap_fixture.h"
#include "media/backing/backing.h"
#include "media/backing/fixed.h"
#include "media/backing/fixed_layout.h"
#include "media/fixed/fixed_make.h"
#include "media/journal/journal_format.h"
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

// A heap on two media, the second of `more` bytes more. Returns PMALLOC_HEAP.
static const char *make_two(uint64_t more) {
    static char second[sizeof pm_heap.dir], both[2 * sizeof pm_heap.dir];
    struct pm_fixed_made made[2];
    snprintf(second, sizeof second, "%.4000s.2", fixture_dir);
    snprintf(both, sizeof both, "%s:%s", fixture_dir, second);
    const char *path[] = {fixture_dir, second};
    int fd = open(second, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(fd >= 0 && posix_fallocate(fd, 0, (off_t)(BYTES + more)) == 0 && close(fd) == 0);
    fd = open(fixture_dir, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(fd >= 0 && posix_fallocate(fd, 0, BYTES) == 0 && close(fd) == 0);
    pm_options_default();
    MUST(pm_fixed_make(path, 2, &(struct pm_fixed_wish){0}, made, &err) == PM_OK);
    CHECK(made[0].head >= made[1].head && made[1].data + made[1].head == BYTES + more);
    CHECK(made[1].number == 1 && made[1].media == 2 && made[1].journal == 0);
    return both;
}

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

static bool is_locked(const char *path) {
    int fd = open(path, O_RDONLY);
    bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

static void test_several_media(void) {
    const char *both = make_two(4 * PM_FIXED_ALIGN), *second = both + strlen(fixture_dir) + 1;
    MUST(pm_tables_reserve(2, 1) && pm_heap_open(both, PM_OPEN_EXISTING, false, &err) == PM_OK);
    MUST(pm_heap_map(&err) == PM_OK);
    CHECK_EQ(pm_heap.shards, 2);
    CHECK_EQ(pm_heap.volumes, 1);
    struct pm_shard *s = &pm_heap.shard[1];
    CHECK(s->data.map == pm_heap_at(PM_SHARD_RANGE) && !pm_fixed_device());
    CHECK(s->limit > BYTES && s->limit > shard()->limit && s->limit <= s->data.room);
    CHECK(pm_medium_of(&s->log) == &pm_fixed.medium[1]);
    CHECK(pm_medium_of(&pm_heap.roots) == &pm_fixed.medium[0]);
    MUST(pm_fixed_set_length(&s->data, PM_REGION_SIZE));
    CHECK(pm_sealed(*s->data.length, PM_SALT_LENGTH(PM_JOURNAL_DATA)));
    MUST(close_range(3, ~0u, 0) == 0);
    CHECK(pm_file_ready(&s->data) && pm_file_ready(&pm_heap.roots));
    CHECK(is_locked(fixture_dir) && is_locked(second)); // by the mappings of the heads
    pm_heap_release();
    CHECK(!is_locked(fixture_dir) && !is_locked(second));
    CHECK(!pm_fixed_is_open() && !s->data.length && !s->log.length && s->log.fd < 0);
    unlink(second);
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
    const struct pm_layout *there = pm_fixed_peek(fd, "test");
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
    CHECK_EQ(err.why, PM_WHY_FOREIGN);
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

static void test_how_large_it_can_become(void) {
    make();
    struct pm_layout l = layout();
    uint64_t head = l.part[PM_JOURNAL_DATA].at, most = pm_layout_most(&l);
    CHECK(most % PM_FIXED_ALIGN == 0 && most > 2 * BYTES && most < 8 * BYTES);
    l.part[PM_JOURNAL_SLABS].room = PM_SHARD_RANGE; // headers for more than a shard can have
    CHECK_EQ(pm_layout_most(&l), head + PM_SHARD_RANGE);
    int fd = open(fixture_dir, O_RDWR);
    MUST(fd >= 0 && posix_fallocate(fd, 0, 8 * BYTES) == 0);
    for (unsigned beyond = 0; beyond <= 1; beyond++) {
        uint64_t bytes = most + beyond * PM_FIXED_ALIGN;
        uint64_t grown = pm_seal((uint32_t)(bytes >> PM_PAGE_SHIFT), PM_SALT_GROWN);
        off_t at = sizeof l + offsetof(struct pm_lengths, grown);
        MUST(pwrite(fd, &grown, sizeof grown, at) == sizeof grown);
        int status = pm_heap_open(fixture_dir, PM_OPEN_READONLY, false, &err);
        CHECK_EQ(status, beyond ? PM_DAMAGE : PM_OK);
        pm_heap_release();
    }
    close(fd);
}

static void test_the_place_of_a_layout(void) {
    make();
    struct pm_layout l = layout();
    l.place = (struct pm_layout_place){2, 3, 2, 3, 0};
    CHECK_EQ(check(l), PM_DAMAGE); // superblock and roots on a medium that is not the first
    for (unsigned part = 0; part < PM_JOURNAL_DATA; part++)
        l.part[part] = (struct pm_part_range){0, 0};
    CHECK_EQ(check(l), PM_DAMAGE); // the record of loaded objects, too
    l.part[PM_PART_OBJECTS] = l.part[PM_PART_OTHER_OBJECTS] = (struct pm_part_range){0, 0};
    CHECK_EQ(check(l), PM_OK);
    struct pm_layout_place wrong[] = {{3, 3, 3, 3, 0}, {2, PM_MEDIA + 1, 2, PM_MEDIA + 1, 0}};
    for (unsigned i = 0; i < 2; i++) {
        l.place = wrong[i];
        CHECK_EQ(check(l), PM_DAMAGE);
    }
    // Several shards on a medium: of a later build.
    struct pm_layout_place later[] = {{0, 1, 0, 2, 1ull << 40}, {0, 1, 1, 1, 0}, {0, 1, 0, 2, 0}};
    for (unsigned i = 0; i < 3; i++) {
        l.place = later[i];
        CHECK_EQ(check(l), PM_OPERATIONAL);
        CHECK_EQ(err.why, PM_WHY_FOREIGN);
    }
}

static void test_media_that_are_refused(void) {
    struct pm_layout first = {.uuid = {1}, .place = {0, 3, 0, 3, 0}}, l = first;
    struct pm_layout_named named = {&first, "/first", 3};
    l.place.number = 1;
    CHECK_EQ(pm_layout_check_place(&first, &named, 0, "/first", &err), PM_OK);
    CHECK_EQ(pm_layout_check_place(&l, &named, 1, "/it", &err), PM_OK);
    CHECK_EQ(pm_layout_check_place(&l, &named, 2, "/it", &err), PM_OPERATIONAL);
    CHECK(strstr(err.text, "/it is number 2") && strstr(err.text, "stands at place 3"));
    named.media = 2;
    CHECK_EQ(pm_layout_check_place(&l, &named, 1, "/it", &err), PM_OPERATIONAL);
    CHECK(strstr(err.text, "number 2 of the 3") && strstr(err.text, "2 are named"));
    named.media = 3;
    l.uuid[15] ^= 1;
    CHECK_EQ(pm_layout_check_place(&l, &named, 1, "/it", &err), PM_OPERATIONAL);
    CHECK(strstr(err.text, "/it belongs to another heap than /first"));
}

static void test_frozen(void) {
    CHECK_EQ(sizeof(struct pm_layout), 4096);
    CHECK_EQ(sizeof(struct pm_lengths), 4096);
    CHECK_EQ(offsetof(struct pm_layout, bytes), 16);
    CHECK_EQ(offsetof(struct pm_layout, uuid), 32);
    CHECK_EQ(PM_FIXED_ALIGN, 2 << 20);
    CHECK_EQ(offsetof(struct pm_layout, place), 304);
    CHECK_EQ(offsetof(struct pm_layout_place, next), 8);
    CHECK_EQ(PM_LAYOUT_VERSION, 2);
}

int main(void) {
    RUN_CHILD(a_length_is_durable_before_it_counts);
    RUN_CHILD(it_ends_where_the_medium_ends);
    RUN_CHILD(the_length_is_there_again);
    RUN_CHILD(descriptors_closed_by_the_program);
    RUN_CHILD(several_media);
    RUN_CHILD(released_space_stays);
    RUN_CHILD(layouts_that_are_refused);
    RUN_CHILD(how_large_it_can_become);
    RUN_CHILD(the_place_of_a_layout);
    RUN_CHILD(media_that_are_refused);
    RUN_CHILD(frozen);
    return CHECK_DONE();
}

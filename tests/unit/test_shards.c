// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Heaps of several shards: a small PMALLOC_SHARD makes them. Every shard is closed, killed,
// recovered, emptied, forked and removed like the first. A process that is killed while it makes a
// shard leaves the heap as it was.
#include <sys/statvfs.h>

#include "base/crc.h"
#include "blocks/verify.h"
#include "fork/private.h"
#include "media/open/heap_dir.h"
#include "media/open/shard_make.h"
#include "session.h"

#define MIB ((uint64_t)1 << 20)
#define LARGE 300000

static struct pm_error err;

static void small_shards(void) {
    settings();
    setenv("PMALLOC_SHARD", "8M", 1);
}

static struct pm_shard_state *shard_state(void) {
    return (struct pm_shard_state *)(void *)pm_heap.super->state.reserved;
}

static unsigned shard_of(const void *p) { return (unsigned)(pm_heap_offset(p) >> PM_SHARD_SHIFT); }

// ---- a list across shards -----------------------------------------------------------------------

struct big {
    struct big *next;
    uint64_t value, *small; // a small block of its own
    uint64_t pad[LARGE / 8 - 3];
};

static struct big *add_big(struct big *list, uint64_t value) {
    struct big *b = pm_malloc(sizeof *b);
    MUST(b && (b->small = pm_malloc(500)));
    b->next = list;
    b->value = b->pad[LARGE / 8 - 4] = *b->small = value;
    return b;
}

static unsigned seen_in[PM_SHARDS]; // large blocks of the list, by shard

static uint64_t big_length(const struct big *list) {
    uint64_t length = 0;
    memset(seen_in, 0, sizeof seen_in);
    for (; list; list = list->next, length++) {
        CHECK(list->value == list->pad[LARGE / 8 - 4] && *list->small == list->value);
        CHECK(!list->next || list->value == list->next->value + 1);
        seen_in[shard_of(list)]++;
    }
    return length;
}

static uint64_t expected;

// Adds 60 large blocks, garbage between them, and checks what was there.
static void grow_list(void) {
    small_shards();
    pm_process_before_main();
    struct big *list = pmalloc_get_root(0);
    CHECK_EQ(big_length(list), expected);
    CHECK_EQ(pm_process_recovery()->live_objects, 2 * expected);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
    for (uint64_t i = 0; i < 60; i++) {
        list = add_big(list, expected + i);
        pm_malloc(LARGE);
        pm_malloc(700);
    }
    CHECK_EQ(pmalloc_set_root(0, list), 0);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
    CHECK_EQ(big_length(list), expected + 60);
    CHECK(pm_heap.shards >= 4 && seen_in[0] && seen_in[1] && seen_in[2]);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        CHECK(pm_heap.shard[i].frontier <= 8 * MIB);
}

static void grow_and_die(void) {
    grow_list();
    if (!check_failures)
        kill(getpid(), SIGKILL);
}

static void grow_and_close(void) {
    grow_list();
    pm_process_end();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
}

static void test_closed_and_killed(void) {
    CHECK_EQ(in_child(grow_and_close), 0);
    expected += 60;
    CHECK_EQ(in_child(grow_and_die), 128 + SIGKILL);
    expected += 60;
    CHECK_EQ(in_child(grow_and_die), 128 + SIGKILL);
    expected += 60;
    CHECK_EQ(in_child(grow_and_close), 0);
}

static void trusting(void) {
    setenv("PMALLOC_COLLECT", "crash", 1);
    small_shards();
    pm_process_before_main();
    CHECK(!pm_process_recovery()->marked);
    CHECK_EQ(big_length(pmalloc_get_root(0)), 60);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
}

// The bitmaps of all shards together replace marking.
static void test_bitmaps(void) {
    CHECK_EQ(in_child(grow_and_close), 0);
    CHECK_EQ(in_child(trusting), 0);
}

// ---- freeing, limit, fork -----------------------------------------------------------------------

static void test_space_is_used_again(void) {
    static void *block[64];
    small_shards();
    pm_process_before_main();
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 64; i++)
            MUST(block[i] = pm_malloc(LARGE));
        CHECK(pm_heap.shards <= 4);
        for (unsigned i = 0; i < 64; i++)
            pm_free(block[i]);
    }
    CHECK_EQ(pm_verify(false, &err), PM_OK);
}

static void test_limit_is_of_all_shards(void) {
    setenv("PMALLOC_LIMIT", "20M", 1);
    small_shards();
    pm_process_before_main();
    uint64_t count = 0, length = 0;
    while (pm_malloc(LARGE))
        count++;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        length += pm_heap.shard[i].frontier;
    CHECK_EQ(length, 20 * MIB);
    CHECK_EQ(pm_heap.shards, 3);
    CHECK(count >= 48);
}

// Huge blocks are promised space that they have not yet. All shards ask one file system: what one
// of them has promised, another must not promise again, nor allocate.
static void promise_twice(void) {
    struct statvfs fs;
    char size[32];
    MUST(statvfs(fixture_dir, &fs) == 0 || statvfs("/dev/shm", &fs) == 0);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize, most = 200ull << 30;
    if (room > most) // a block's most
        return;
    snprintf(size, sizeof size, "%lu", (unsigned long)(room / 10 * 7 / MIB * MIB));
    settings();
    setenv("PMALLOC_SHARD", size, 1);
    pm_process_before_main();
    char *first = pm_malloc(room / 10 * 6);
    CHECK(first != NULL);
    CHECK(pm_malloc(room / 10 * 6) == NULL);
    CHECK(pm_malloc(room / 10) != NULL);
    pm_free(first);
    CHECK(pm_malloc(room / 10 * 6) != NULL);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
}

static void test_promises_of_all_shards(void) { CHECK_EQ(in_child(promise_twice), 0); }

static void promise(void) {
    settings();
    pm_process_before_main();
    CHECK_EQ(pmalloc_set_root(0, pm_malloc(10 * MIB)), 0);
    pm_process_end();
}

static void remember(void) {
    settings();
    pm_process_before_main();
    CHECK(pmalloc_get_root(0) && pm_heap.shard[0].extents->promises);
}

// The next run must not take the space of a block that was promised it and not touched yet.
static void test_promises_of_earlier_runs(void) {
    CHECK_EQ(in_child(promise), 0);
    CHECK_EQ(in_child(remember), 0);
}

static void test_too_large_for_a_shard(void) {
    small_shards();
    pm_process_before_main();
    CHECK(pm_malloc(9 * MIB) == NULL);
    CHECK_EQ(pm_heap.shards, 1);
}

static struct big *parents;

static void private_child(void) {
    struct big *list = parents;
    CHECK(pm_private_enter(false));
    pm_private_copy();
    for (struct big *b = list; b; b = b->next)
        *b->small = b->value = b->pad[LARGE / 8 - 4] = b->value + 1000;
    CHECK_EQ(big_length(list), 60);
    pm_heap_release();
    for (unsigned i = 0; i < 30; i++)
        MUST(list = add_big(list, list->value + 1));
    CHECK_EQ(big_length(list), 90);
}

// What a child stores to any shard stays its own.
static void test_private(void) {
    grow_list();
    parents = pmalloc_get_root(0);
    CHECK_EQ(in_child(private_child), 0);
    CHECK_EQ(big_length(parents), 60);
}

static void emptied(void) {
    small_shards();
    pm_process_before_main();
    for (unsigned i = 0; i < 80; i++)
        MUST(pm_malloc(LARGE));
    CHECK(pm_heap.shards > 2);
    pm_process_end();
}

// A heap without roots is emptied at its end: every shard of it.
static void test_without_roots(void) {
    CHECK_EQ(in_child(emptied), 0);
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
    CHECK(pm_heap.shards > 2);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        CHECK_EQ(pm_heap.shard[i].frontier, 0);
    CHECK_EQ(pm_extent_stats().active, 0);
    pm_heap_remove();
    CHECK(access(fixture_dir, F_OK) != 0);
}

static void sixteen(void) {
    setenv("PMALLOC_SHARD", "4M", 1);
    setenv("PMALLOC_LIMIT", "64M", 1);
    setenv("PMALLOC_MARKERS", "4", 1);
    pm_process_before_main();
    struct big *list = pmalloc_get_root(0);
    CHECK_EQ(big_length(list), expected);
    CHECK(expected == 0 || pm_process_recovery()->live_objects == 2 * expected);
    while (expected < 155)
        list = add_big(list, expected++);
    CHECK_EQ(pmalloc_set_root(0, list), 0);
    CHECK_EQ(pm_heap.shards, PM_SHARDS);
    CHECK_EQ(big_length(list), 155);
    for (unsigned i = 0; i < PM_SHARDS; i++)
        CHECK(seen_in[i]);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
    kill(getpid(), SIGKILL);
}

// All addresses that a heap can have: the last block lies above 15 TiB.
static void test_sixteen_shards(void) {
    settings();
    CHECK_EQ(in_child(sixteen), 128 + SIGKILL);
    expected = 155;
    CHECK_EQ(in_child(sixteen), 128 + SIGKILL);
}

// ---- killed while it makes one ------------------------------------------------------------------

static unsigned drains, die_at;

static void count_flush(const void *addr, size_t len) { (void)addr, (void)len; }
static void count_drain(void) {
    if (++drains == die_at)
        kill(getpid(), SIGKILL);
}

static void make_shard(void) {
    pm_options_default();
    MUST(pm_option_set("PMALLOC_SHARD", "8M", &err) == PM_OK);
    fixture_new_heap();
    pm_persist = (struct pm_persist_ops){count_flush, count_drain};
    drains = 0;
    CHECK(pm_shard_make(0));
    CHECK_EQ(pm_heap.shards, 2);
    _exit(check_failures ? 1 : 100 + (int)drains);
}

static bool there(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, name);
    return access(path, F_OK) == 0;
}

static void recover_unfinished(void) {
    small_shards();
    pm_process_before_main();
    CHECK(pm_heap.shards == 1 || pm_heap.shards == 2);
    // Older builds, which do not know the count, are kept out before it counts.
    CHECK(pm_heap.shards == 1 || pm_heap.super->super.incompat & PM_INCOMPAT_SHARDS);
    CHECK(there("heap.1") == (pm_heap.shards == 2) && there("slabs.1") == (pm_heap.shards == 2));
    struct big *list = NULL;
    for (uint64_t i = 0; i < 60; i++)
        list = add_big(list, i);
    CHECK_EQ(pmalloc_set_root(0, list), 0);
    CHECK_EQ(big_length(list), 60);
    CHECK_EQ(pm_verify(false, &err), PM_OK);
    const struct pm_superblock *super = &pm_heap.super->super;
    CHECK(super->incompat & PM_INCOMPAT_SHARDS);
    CHECK_EQ(super->crc, pm_crc32c(0, super, offsetof(struct pm_superblock, crc)));
    pm_process_end();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
}

static void test_killed_amid_making(void) {
    unsigned all = (unsigned)in_child(make_shard) - 100;
    CHECK(all >= 4 && all < 20);
    pm_dir_empty(open(fixture_dir, O_RDONLY | O_DIRECTORY));
    for (die_at = 1; die_at <= all && !check_failures; die_at++) {
        CHECK_EQ(in_child(make_shard), 128 + SIGKILL);
        expected = 0;
        CHECK_EQ(in_child(recover_unfinished), 0);
        int dir = open(fixture_dir, O_RDONLY | O_DIRECTORY);
        CHECK(pm_dir_empty(dir));
        close(dir);
    }
}

// ---- damage -------------------------------------------------------------------------------------

static void two_shards(void) {
    pm_options_default();
    MUST(pm_option_set("PMALLOC_SHARD", "8M", &err) == PM_OK);
    fixture_new_heap();
    CHECK(!(pm_heap.super->super.incompat & PM_INCOMPAT_SHARDS)); // older builds open it
    CHECK_EQ(shard_state()->shards, 0);
    CHECK(pm_shard_make(0));
}

static uint64_t count_word;

static void write_count(void) {
    int fd = open(fixture_dir, O_RDONLY | O_DIRECTORY);
    int super = openat(fd, "superblock", O_RDWR);
    off_t at = offsetof(struct pm_super_file, state) + offsetof(struct pm_state, reserved);
    MUST(pwrite(super, &count_word, sizeof count_word, at) == sizeof count_word);
    close(super);
    close(fd);
}

static void reopen_damaged(void) {
    write_count();
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "number of shards");
}

static void reopen_without_a_file(void) {
    write_count();
    pm_options_default();
    CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "slabs.1 is missing");
}

static void test_damage(void) {
    char path[160];
    CHECK_EQ(in_child(two_shards), 0);
    CHECK_EQ(in_child(reopen_damaged), 0); // zeroes where the bit says that there was a word
    count_word = pm_seal(17, PM_SALT_SHARDS);
    CHECK_EQ(in_child(reopen_damaged), 0);
    count_word = pm_seal(2, PM_SALT_SHARDS) ^ 1;
    CHECK_EQ(in_child(reopen_damaged), 0);
    snprintf(path, sizeof path, "%s/slabs.1", fixture_dir);
    MUST(unlink(path) == 0);
    count_word = pm_seal(2, PM_SALT_SHARDS);
    CHECK_EQ(in_child(reopen_without_a_file), 0);
}

int main(void) {
    RUN_CHILD(closed_and_killed);
    RUN_CHILD(bitmaps);
    RUN_CHILD(space_is_used_again);
    RUN_CHILD(limit_is_of_all_shards);
    RUN_CHILD(promises_of_all_shards);
    RUN_CHILD(promises_of_earlier_runs);
    RUN_CHILD(too_large_for_a_shard);
    RUN_CHILD(private);
    RUN_CHILD(without_roots);
    RUN_CHILD(sixteen_shards);
    RUN_CHILD(killed_amid_making);
    RUN_CHILD(damage);
    return CHECK_DONE();
}

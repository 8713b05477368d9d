// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The heap directory: making and reopening it, its state, the frontier, the range it is mapped at.
#include "heap_opening.h"

static void test_create(void) {
    make_heap();
    struct stat st;
    CHECK(stat(fixture_dir, &st) == 0 && (st.st_mode & 07777) == 0700);
    char path[160];
    for (size_t i = 0; i < PM_FIRST_FILES; i++) {
        if (!pm_heap_files[i].held)
            continue;
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, pm_heap_files[i].name);
        CHECK(lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600);
    }
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    CHECK(!pm_heap.created && pm_heap_on_media() && !pm_heap.readonly);
    CHECK_EQ(pm_heap.super->super.magic, PM_SUPER_MAGIC);
    CHECK_EQ(pm_heap.super->super.base, PM_HEAP_BASE);
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_DIRTY); // a new heap has never been closed
    CHECK(!pm_heap_has_roots());
    uint8_t none[16] = {0};
    CHECK(memcmp(pm_heap.super->super.uuid, none, 16) != 0);
    // Descriptors are close-on-exec and out of the program's way.
    CHECK(fcntl(pm_heap.shard[0].data.fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(pm_heap.dir_fd, F_GETFD) & FD_CLOEXEC);
    CHECK(pm_heap.shard[0].data.fd > 64 && pm_heap.dir_fd > 64);
}

static void test_two_heaps_differ(void) {
    make_heap();
    uint8_t uuid[16];
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    memcpy(uuid, pm_heap.super->super.uuid, 16);
    pm_heap_remove();
    pm_heap_release();
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    CHECK(memcmp(uuid, pm_heap.super->super.uuid, 16) != 0);
}

static void test_state(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    uint64_t opens = pm_heap.super->state.opens;
    pm_heap_dirty();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_DIRTY);
    CHECK_EQ(pm_heap.super->state.opens, opens + 1);
    CHECK_EQ(pm_heap.super->state.owner_pid, getpid());
    CHECK(pm_heap_clean());
    pm_heap_release();
    CHECK(pm_heap_state() == PM_HEAP_CLOSED && pm_heap.super == NULL);
    MUST(open_it(PM_OPEN_READONLY) == PM_OK);
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
    pm_heap_release();
}

static void test_data_comes_back(void) {
    make_heap();
    for (int round = 0; round < 3; round++) {
        MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
        CHECK_EQ(pm_heap_map(&err), PM_OK);
        CHECK_EQ((uintptr_t)pm_heap.shard[0].data.map, PM_HEAP_BASE);
        pm_heap_dirty();
        if (round == 0)
            CHECK(pm_shard_set_frontier(&pm_heap.shard[0], 8 << 20));
        CHECK_EQ(pm_heap.shard[0].frontier, 8 << 20);
        uint64_t *word = pm_heap_at(4096 * 5 + 8);
        CHECK_EQ(*word, round);
        *word = (uint64_t)round + 1;
        pm_heap_release();
        munmap(pm_heap_at(0), PM_HEAP_RANGE);
    }
}

static void test_remove(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap_remove();
    CHECK(access(fixture_dir, F_OK) != 0);
    pm_heap_release();
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "No such file");
}

static void test_roots(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap.super->slots.slot[511] = pm_slot_word(511, 5);
    CHECK(pm_heap_has_roots());
    pm_heap.super->slots.slot[511] = pm_slot_word(511, 0);
    pm_heap.super->roots[0].count = 1;
    CHECK(pm_heap_has_roots());
    pm_heap.super->state.root_epoch = pm_seal(1, PM_SALT_ROOT_EPOCH); // the other table is in force
    CHECK(!pm_heap_has_roots());
}

static void test_range_taken(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    void *p = mmap(pm_heap_at(1 << 20), 4096, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(p == pm_heap_at(1 << 20));
    CHECK_EQ(pm_heap_map(&err), PM_OPERATIONAL);
    CHECK_HAS(err.text, "400000000000 is taken by: 400000100000-400000101000 r--p");
}

int main(void) {
    RUN_CHILD(create);
    RUN_CHILD(two_heaps_differ);
    RUN_CHILD(state);
    RUN_CHILD(data_comes_back);
    RUN_CHILD(remove);
    RUN_CHILD(roots);
    RUN_CHILD(range_taken);
    return CHECK_DONE();
}

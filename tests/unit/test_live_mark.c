// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Marking in a heap that is in use: what a root reaches, whatever its size and depth; what is free
// or cached is no block in use; no mark stays. Stack and pool are small here, so that they
// overflow, and helpers come early.
#define LIVE_STACK 16u
#define LIVE_POOL 64u
#define ALONE 4096u
#include "live/live_mark.c"

#include "base/own_memory.h"
#include "heap_fixture.h"
#include "live/leaks.h"
#include "process/before_main.h"
#include "process/entry.h"

static struct pm_leaks leaks;
static struct pm_live_sum sum;

static void add(void *block, size_t bytes, void *unused) {
    (void)unused;
    pm_leaks_add(&leaks, block, bytes);
}

// Marks from one word. Returns how many blocks nothing reaches.
static uint64_t unreached_from(const void *root) {
    struct pm_error err;
    leaks = (struct pm_leaks){0};
    MUST(pm_live_begin(0, &err) == PM_OK);
    pm_live_root(&root, sizeof root);
    pm_live_mark();
    sum = pm_live_unreached(add, NULL);
    pm_live_end();
    return leaks.sum.blocks;
}

static void begin(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_process_before_main();
}

static void test_sizes(void) {
    static const size_t size[] = {16, 48, 1000, 14000, 16385, 100000, 3 << 20};
    const unsigned count = sizeof size / sizeof size[0];
    begin();
    void **root = pm_calloc(count, sizeof *root);
    for (unsigned i = 0; i < count; i++)
        root[i] = (char *)pm_calloc(1, size[i]) + size[i] - 1; // their last bytes
    CHECK_EQ(unreached_from(root), 0);
    CHECK_EQ(sum.blocks, count + 1);
    CHECK_EQ(unreached_from(NULL), count + 1);
    CHECK_EQ(leaks.sum.bytes, sum.bytes);
    for (unsigned i = 0; i < count; i++) { // no mark stays: a tag with one frees nothing
        pm_free((char *)root[i] - size[i] + 1);
        CHECK_EQ(unreached_from(root), 0);
        CHECK_EQ(sum.blocks, count - i);
    }
}

// More blocks at once than the stack takes.
static void test_overflow(void) {
    const unsigned count = 300000;
    begin();
    void ***root = pm_calloc(count, sizeof *root);
    for (unsigned i = 0; i < count; i++) {
        root[i] = pm_calloc(2, sizeof **root);
        root[i][1] = pm_calloc(1, 16);
    }
    CHECK_EQ(unreached_from(root), 0);
    CHECK_EQ(sum.blocks, 2 * count + 1);
    root[count / 2][1] = NULL;
    CHECK_EQ(unreached_from(root), 1);
    CHECK_EQ(leaks.sum.bytes, 16);
}

static void test_ring(void) {
    begin();
    void **first = pm_calloc(1, 64), **second = pm_calloc(1, 64);
    *first = second;
    *second = first;
    CHECK_EQ(unreached_from(second + 7), 0);
    CHECK_EQ(unreached_from(NULL), 2);
}

static uint64_t at_end(const void *root, const void *stored, size_t len) {
    struct pm_error err;
    leaks = (struct pm_leaks){0};
    MUST(pm_live_again(&err) == PM_OK);
    pm_live_root(&root, sizeof root);
    pm_live_stored(stored, len);
    pm_live_mark();
    sum = pm_live_noted(add, NULL);
    pm_live_end();
    return leaks.sum.blocks;
}

static void mark_beside(void *root) {
    struct pm_error err;
    MUST(pm_live_begin(1, &err) == PM_OK);
    pm_live_root(&root, sizeof root);
    pm_live_mark();
    MUST(pm_live_note());
}

// What the program does between the two halts: it moves addresses, loses, frees and makes blocks.
static void test_beside(void) {
    static const size_t size[] = {64, 3000, 100000};
    begin();
    for (unsigned i = 0; i < 3; i++) {
        char *whole = pm_calloc(1, size[i]);
        void **slot = (void **)(void *)(whole + size[i] - 8), *hidden = pm_calloc(1, 48);
        void *lost = pm_calloc(1, 1000), *freed = pm_calloc(1, 500);
        mark_beside(whole);
        *slot = hidden; // it was in a register
        CHECK_EQ(at_end(whole, slot, 8), 2);
        mark_beside(whole);
        pm_free(freed);
        void *younger = pm_calloc(1, 500);
        CHECK_EQ(at_end(whole, whole, size[i]), younger == freed ? 2 : 1);
        mark_beside(whole);
        *slot = NULL;
        void *large = pm_calloc(1, 5 << 20); // the heap grows, and has a block that was not there
        ((void **)large)[1000] = hidden;
        CHECK_EQ(at_end(large, slot, 8), younger == freed ? 2 : 1);
        pm_free(large), pm_free(hidden), pm_free(lost), pm_free(younger), pm_free(whole);
    }
    mark_beside(NULL);
    CHECK_EQ(at_end(NULL, NULL, 0), 0);
}

// Words of blocks that nothing has reached keep nothing.
static void test_stored_but_lost(void) {
    begin();
    void **lost = pm_calloc(1, 64), *other = pm_calloc(1, 48);
    mark_beside(NULL);
    *lost = other;
    CHECK_EQ(at_end(NULL, lost, 64), 2);
}

static void test_own(void) {
    uintptr_t next;
    char *at = pm_own_reserve(8192);
    MUST(at != NULL);
    CHECK_EQ(pm_own_end((uintptr_t)at, &next), (uintptr_t)at + 8192);
    CHECK_EQ(pm_own_end((uintptr_t)at + 8191, &next), (uintptr_t)at + 8192);
    CHECK_EQ(pm_own_end((uintptr_t)at - 1, &next), 0);
    CHECK_EQ(next, (uintptr_t)at);
    for (unsigned i = 0; i < 1000; i++) // more than there is room for
        pm_own_note(at, 16);
    CHECK_EQ(pm_own_end((uintptr_t)at + 100, &next), (uintptr_t)at + 8192);
}

int main(void) {
    RUN_CHILD(sizes);
    RUN_CHILD(overflow);
    RUN_CHILD(ring);
    RUN_CHILD(beside);
    RUN_CHILD(stored_but_lost);
    RUN_CHILD(own);
    return CHECK_DONE();
}

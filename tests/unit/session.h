// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Processes that one after another open the same heap, check its list, add to it, and then die or
// close.
#ifndef PMALLOC_TESTS_UNIT_SESSION_H
#define PMALLOC_TESTS_UNIT_SESSION_H

#include "blocks/verify.h"
#include "heap_fixture.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "process/open.h"
#include "process/start.h"

struct node {
    struct node *next;
    uint64_t value;
    uint64_t pad[6];
};

static inline void settings(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_MARKERS", "1", 1);
}

static inline void die(void) {
    if (!check_failures)
        kill(getpid(), SIGKILL);
}

static inline void verify(void) {
    struct pm_error err = {0};
    CHECK_EQ(pm_verify(true, &err), PM_OK);
    if (err.status != PM_OK)
        printf("  %s\n", err.text);
}

static inline struct node *list_add(struct node *list, uint64_t value) {
    struct node *n = pm_malloc(sizeof *n);
    MUST(n != NULL);
    *n = (struct node){.next = list, .value = value};
    return n;
}

static inline uint64_t list_length(const struct node *list) {
    uint64_t length = 0;
    for (; list; list = list->next) {
        if (list->next)
            CHECK_EQ(list->value, list->next->value + 1);
        length++;
    }
    return length;
}

// Adds 1000 nodes to the list at slot 0, a large block that only the newest node reaches, and
// garbage.
static inline void add_nodes(void) {
    struct node *list = pmalloc_get_root(0);
    CHECK(pmalloc_is_persistent());
    CHECK_STR(pmalloc_heap_path(), fixture_dir);
    uint64_t length = list_length(list);
    if (list) {
        uint64_t *large = (uint64_t *)(uintptr_t)list->pad[0];
        CHECK(large[0] == list->value && large[9999] == list->value);
        CHECK_EQ(pm_usable_size(list), 64);
        CHECK(pm_usable_size(large) >= 80000);
        pm_free(large);
        list->pad[0] = 0; // or whatever is there next would stay alive
    }
    for (uint64_t i = 0; i < 1000; i++) {
        list = list_add(list, length + i);
        pm_malloc(100);
        if (i % 50 == 0)
            pm_malloc(50000);
    }
    uint64_t *large = pm_malloc(80000);
    large[0] = large[9999] = list->value;
    list->pad[0] = (uint64_t)(uintptr_t)large;
    CHECK_EQ(pmalloc_set_root(0, list), 0);
    CHECK(pmalloc_get_root(0) == list);
}

static uint64_t expected_live;

static inline void session(void) {
    settings();
    pm_process_before_main();
    const struct pm_recovery *r = pm_process_recovery();
    CHECK_EQ(r->live_objects, expected_live);
    add_nodes();
}

static inline void killed_session(void) {
    session();
    die();
}

static inline void closed_session(void) {
    session();
    pm_process_end();
    CHECK(!pmalloc_is_persistent());
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
}

#endif

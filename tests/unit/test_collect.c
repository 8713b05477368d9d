// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// PMALLOC_COLLECT=api: what a start keeps until pmalloc_collect(), and what that call frees.
#include "blocks/alloc.h"
#include "blocks/verify.h"
#include "session.h"

#define NODES 3000u

static void begin(const char *collect) {
    settings();
    setenv("PMALLOC_COLLECT", collect, 1);
    pm_process_before_main();
}

// What the program keeps beside its list: a log with an address that does not look like one.
struct log {
    uint64_t hidden;
    struct node *fresh;
    struct node *stale; // an old block that the program has freed
};

static size_t size_of(uint64_t value) { return value % 50 ? 64 + value % 900 : 30000; }

static struct node *add(struct node *list, uint64_t value) {
    struct node *n = pmalloc_alloc(size_of(value), 0, 0);
    MUST(n != NULL);
    memset(n, 0, size_of(value));
    *n = (struct node){.next = list, .value = value};
    return n;
}

static void check_list(const struct node *list, uint64_t from, uint64_t count) {
    uint64_t length = 0;
    for (const struct node *n = list; n; n = n->next, length++)
        MUST(n->value == from - length &&
             pm_usable_size((void *)(uintptr_t)n) >= size_of(n->value));
    CHECK_EQ(length, count);
}

// A list in slot 0; one that only the log has; and blocks that nothing has.
static void leave(void) {
    begin("always");
    struct node *list = NULL, *hidden = NULL;
    struct log *log = pm_calloc(1, sizeof *log);
    for (uint64_t i = 0; i < NODES; i++) {
        list = add(list, i);
        hidden = add(hidden, i);
        add(NULL, i);
        for (unsigned w = 1; w < 3; w++)
            pm_free(pm_malloc(64 * w)); // sparse slabs
    }
    log->hidden = ~(uint64_t)(uintptr_t)hidden;
    for (struct node *n = hidden; n; n = n->next) // its links are hidden, too
        n->pad[0] = ~(uint64_t)(uintptr_t)n->next;
    for (struct node *n = hidden, *next; n; n = next) {
        next = n->next;
        n->next = NULL;
    }
    CHECK(pmalloc_set_root(0, list) == 0 && pmalloc_set_root(1, log) == 0);
    die();
}

static int add_one(void *p, size_t size, unsigned flags, void *sum) {
    (void)p, (void)size, (void)flags;
    ++*(uint64_t *)sum;
    return 0;
}

static uint64_t allocated(void) {
    uint64_t sum = 0;
    CHECK_EQ(pmalloc_walk(add_one, &sum), 0);
    return sum;
}

// Frees every third node of a list, whose numbers then have gaps.
static uint64_t thin_out(struct node *list) {
    uint64_t gone = 0;
    for (struct node *n = list; n && n->next; n = n->next)
        if (n->next->value % 3 == 0) {
            struct node *dead = n->next;
            n->next = dead->next;
            pm_free(dead);
            gone++;
        }
    return gone;
}

// New blocks are put between the old ones; nothing old is overwritten by them.
static void more(struct log *log, struct node *old) {
    for (uint64_t i = 0; i < 2 * NODES; i++) {
        struct node *n = add(NULL, i);
        memset((char *)n + sizeof *n, 0xee, size_of(i) - sizeof *n);
    }
    log->fresh = add(old, 7); // from here on a new block alone reaches `old`
    struct node *large = pm_malloc(900000);
    memset(large, 0, 900000);
    large[5000].next = log->fresh->next;
    log->fresh->next = large;
}

static void replay_and_collect(void) {
    begin("api");
    CHECK(pm_process_recovery()->uncollected || pm_process_recovery()->was_clean);
    struct log *log = pmalloc_get_root(1);
    struct node *list = pmalloc_get_root(0);
    uint64_t before = allocated();
    CHECK(before >= 3 * NODES + 1);
    check_list(list, NODES - 1, NODES);
    struct node *kept = pm_malloc(64);
    kept->next = NULL;
    struct node *n = (struct node *)(uintptr_t)~log->hidden, *hidden = n;
    for (; n; n = n->next) // the program's log knows how to undo it
        n->next = n->pad[0] == ~0ull ? NULL : (struct node *)(uintptr_t)~n->pad[0];
    check_list(hidden, NODES - 1, NODES);
    uint64_t gone = thin_out(list);
    CHECK(gone > NODES / 4);
    log->stale = list->next->next; // in a slab that stays
    list->next->next = log->stale->next;
    pm_free(log->stale);
    gone++;
    more(log, hidden);
    verify();
    CHECK_EQ(pmalloc_collect(), 0);
    CHECK_EQ(pm_find_tag(log->stale), PM_TAG_NONE);
    log->stale = NULL;
    verify();
    check_list(hidden, NODES - 1, NODES);
    CHECK(log->fresh->value == 7 && log->fresh->next[5000].next == hidden);
    // Both lists, the log, what was allocated since; not what nothing has.
    CHECK(allocated() < 4 * NODES - gone + 20 + NODES);
    CHECK(allocated() >= 4 * NODES - gone + 4);
    uint64_t now = allocated();
    for (unsigned i = 0; i < 5000; i++)
        memset(add(NULL, i), 0xdd, 64); // what was freed is used again
    CHECK(allocated() == now + 5000);
    check_list(hidden, NODES - 1, NODES);
    CHECK_EQ(pmalloc_collect(), 0); // nothing is held any more
    CHECK(allocated() == now + 5000);
    verify();
}

static void collect_and_die(void) {
    replay_and_collect();
    die();
}

static void look(void) {
    begin("always");
    struct log *log = pmalloc_get_root(1);
    check_list(log->fresh->next[5000].next, NODES - 1, NODES);
    CHECK_EQ(pm_process_recovery()->live_objects, 3 + NODES + NODES - (NODES + 1) / 3 - 1);
    verify();
}

static void test_replay(void) {
    CHECK_EQ(in_child(leave), 128 + SIGKILL);
    CHECK_EQ(in_child(collect_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

// A kill before the collection leaves everything as it was; so does a clean end.
static void only_look(void) {
    begin("api");
    CHECK(allocated() >= 3 * NODES + 1);
    (void)!add(NULL, 5);
    verify();
    die();
}

static void end_cleanly(void) {
    begin("api");
    CHECK(allocated() >= 3 * NODES + 1);
    pm_process_end();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
}

static void test_not_collected(void) {
    CHECK_EQ(in_child(leave), 128 + SIGKILL);
    CHECK_EQ(in_child(only_look), 128 + SIGKILL);
    CHECK_EQ(in_child(end_cleanly), 0);
    CHECK_EQ(in_child(end_cleanly), 0);
    CHECK_EQ(in_child(collect_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

static void test_refused(void) {
    begin("always");
    CHECK(pmalloc_collect() == -1 && errno == ENOTSUP);
}

static void test_volatile(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    begin("api");
    CHECK(pmalloc_collect() == -1 && errno == ENOTSUP);
}

int main(void) {
    RUN_CHILD(replay);
    RUN_CHILD(not_collected);
    RUN_CHILD(refused);
    RUN_CHILD(volatile);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Disappearing links on media: the table, what a start clears, what pmalloc_collect() clears.
#include "blocks/link_table.h"
#include "media/link_format.h"
#include "session.h"

#define LINKS 1000u // several tables

// The root: words that hide their objects' addresses, large enough to be a large block. Every third
// object is held.
struct words {
    uint64_t hidden[2 * LINKS];
    void *held[LINKS];
};

static struct pm_link link_of(const uint64_t *word, const void *object, uint64_t i) {
    return (struct pm_link){
        .at = pm_heap_offset(word), .object = pm_heap_offset(object), .is_long = i % 2};
}

static size_t size_of(uint64_t i) { return i % 50 ? 40 + i : 70000; }

static void make(void) {
    settings();
    pm_process_before_main();
    CHECK_EQ(pm_heap.super->super.incompat & PM_INCOMPAT_LINKS, 0);
    struct words *w = pm_calloc(1, sizeof *w);
    for (uint64_t i = 0; i < LINKS; i++) {
        uint32_t number;
        void *object = pm_malloc(size_of(i));
        memset(object, 0, size_of(i));
        w->hidden[i] = ~(uint64_t)(uintptr_t)object;
        w->held[i] = i % 3 ? NULL : object;
        struct pm_link link = link_of(&w->hidden[i], object, i);
        MUST(pm_links_add(&link, &number));
    }
    CHECK_EQ(pm_links_count(), LINKS);
    CHECK(pm_heap.super->super.incompat & PM_INCOMPAT_LINKS);
    CHECK(pmalloc_set_root(0, w) == 0);
    die();
}

static void check_one(uint32_t number, const struct pm_link *link, void *seen) {
    const struct words *w = pmalloc_get_root(0);
    uint64_t i = (link->at - pm_heap_offset(w->hidden)) / sizeof w->hidden[0];
    (void)number;
    MUST(i < LINKS && !link->in_root);
    CHECK_EQ(link->is_long, i % 2);
    CHECK_EQ(~w->hidden[i], (uint64_t)(uintptr_t)pm_heap_at(link->object));
    ++((unsigned char *)seen)[i];
}

// All links of held objects are there, once, and of the others all or none.
static void check(bool others) {
    static unsigned char seen[LINKS];
    const struct words *w = pmalloc_get_root(0);
    memset(seen, 0, sizeof seen);
    pm_links_each(check_one, seen);
    for (uint64_t i = 0; i < LINKS; i++) {
        CHECK_EQ(seen[i], i % 3 == 0 || others);
        CHECK_EQ(w->hidden[i] != 0, i % 3 == 0 || others);
    }
    verify();
}

static void start_clears(void) {
    settings();
    pm_process_before_main();
    const struct pm_links_found *found = &pm_process_recovery()->links;
    CHECK_EQ(found->registered, LINKS);
    CHECK_EQ(found->cleared, LINKS - (LINKS + 2) / 3);
    CHECK_EQ(found->lost + found->foreign, 0);
    check(false);
    die();
}

static void test_a_start_clears(void) {
    CHECK_EQ(in_child(make), 128 + SIGKILL);
    CHECK_EQ(in_child(start_clears), 128 + SIGKILL);
}

// The program takes one object out of its link before it collects.
static void collect_clears(void) {
    settings();
    setenv("PMALLOC_COLLECT", "api", 1);
    pm_process_before_main();
    struct words *w = pmalloc_get_root(0);
    CHECK_EQ(pm_process_recovery()->links.cleared, 0);
    check(true);
    w->held[1] = (void *)(uintptr_t)~w->hidden[1];
    uint64_t before = pm_links_weeded;
    CHECK_EQ(pmalloc_collect(), 0);
    CHECK_EQ(pm_links_weeded - before, LINKS - (LINKS + 2) / 3 - 1);
    CHECK_EQ(w->hidden[1], ~(uint64_t)(uintptr_t)w->held[1]);
    CHECK_EQ(pm_links_count(), (LINKS + 2) / 3 + 1);
    w->held[1] = NULL;
    die();
}

static void test_collect_clears(void) {
    CHECK_EQ(in_child(make), 128 + SIGKILL);
    CHECK_EQ(in_child(collect_clears), 128 + SIGKILL);
}

static void stays_clean(void) {
    settings();
    pm_process_before_main();
    check(false);
    pm_process_end();
}
static void believes_bitmaps(void) {
    setenv("PMALLOC_COLLECT", "crash", 1);
    settings();
    pm_process_before_main();
    CHECK(pm_process_recovery()->was_clean && !pm_process_recovery()->marked);
    check(false);
    die();
}

static void test_a_clean_heap_keeps_links(void) {
    CHECK_EQ(in_child(make), 128 + SIGKILL);
    CHECK_EQ(in_child(stays_clean), 0);
    CHECK_EQ(in_child(believes_bitmaps), 128 + SIGKILL);
}

static uint32_t numbers[LINKS];
static void note_number(uint32_t number, const struct pm_link *link, void *words) {
    numbers[(link->at - pm_heap_offset(words)) / sizeof(uint64_t)] = number;
}

// Entries that are free are used again: the tables do not grow.
static void reuses(void) {
    settings();
    pm_process_before_main();
    struct words *w = pmalloc_get_root(0);
    size_t size = pm_heap.shard[0].morph.size;
    pm_links_each(note_number, w->hidden);
    for (unsigned round = 0; round < 5; round++)
        for (uint64_t i = 0; i < LINKS; i += 3) {
            struct pm_link link = link_of(&w->hidden[LINKS + i], w->held[i], i);
            w->hidden[LINKS + i] = w->hidden[i];
            CHECK(pm_links_move(&numbers[i], &link));
            link = link_of(&w->hidden[i], w->held[i], i);
            pm_links_erase(numbers[i]);
            pm_links_settle();
            CHECK(pm_links_add(&link, &numbers[i]));
            w->hidden[LINKS + i] = 0;
        }
    CHECK_EQ(pm_heap.shard[0].morph.size, size);
    check(false);
    die();
}

static void test_free_entries_are_used_again(void) {
    CHECK_EQ(in_child(make), 128 + SIGKILL);
    CHECK_EQ(in_child(reuses), 128 + SIGKILL);
    CHECK_EQ(in_child(stays_clean), 0);
}

static void test_what_names_an_object(void) {
    CHECK(pm_links_names(0x1000, 0x1000, 16) && pm_links_names(0x100f, 0x1000, 16));
    CHECK(!pm_links_names(0x1010, 0x1000, 16) && !pm_links_names(0xfff, 0x1000, 16));
    CHECK(pm_links_names(~0x1008ull, 0x1000, 16) && !pm_links_names(~0x1010ull, 0x1000, 16));
    CHECK(!pm_links_names(0, 0x1000, 16));
}

int main(void) {
    RUN_CHILD(a_start_clears);
    RUN_CHILD(collect_clears);
    RUN_CHILD(a_clean_heap_keeps_links);
    RUN_CHILD(free_entries_are_used_again);
    RUN(what_names_an_object);
    return check_failures != 0;
}

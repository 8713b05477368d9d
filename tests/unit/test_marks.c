// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Marks against a table of pages: random changes, and what stands on each page afterwards. Renewing
// and dropping end, and reach the pages that they should.
#include "media/backing/marks.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "media/heap.h"

#define PAGES 64u
#define ROUNDS 20000u

static struct {
    unsigned kinds;
    int access;
} model[PAGES];

static uint64_t place(unsigned page) { return (uint64_t)page << PM_PAGE_SHIFT; }

static void change_model(unsigned from, unsigned to, unsigned add, unsigned remove, int access) {
    for (unsigned i = from; i < to; i++) {
        model[i].kinds = (model[i].kinds & ~remove) | add;
        if (add & PM_MARK_ACCESS)
            model[i].access = access;
        if (!(model[i].kinds & PM_MARK_ACCESS))
            model[i].access = 0;
    }
}

// The parts without some kinds are all pages without them.
static void check_free(void) {
    unsigned kinds = 1u << rand() % 8, page = 0;
    uint64_t at = 0;
    for (uint64_t len; (len = pm_marks_free_of(kinds, &at, place(PAGES))) != 0; at += len) {
        for (; page < at >> PM_PAGE_SHIFT; page++)
            CHECK(model[page].kinds & kinds);
        for (; page < (at + len) >> PM_PAGE_SHIFT; page++)
            CHECK(!(model[page].kinds & kinds));
    }
    for (; page < PAGES; page++)
        CHECK(model[page].kinds & kinds);
}

// Marks rise, do not touch a neighbour that is the same, and say what the model says.
static void check_all(void) {
    struct pm_mark m, last = {0};
    unsigned at = 0, count = 0;
    for (uint64_t from = 0; pm_marks_next(from, &m); from = m.to, last = m, count++) {
        CHECK(m.from < m.to && m.from >= last.to && m.kinds);
        CHECK(!count || m.from > last.to || m.kinds != last.kinds || m.access != last.access);
        for (; at < m.from >> PM_PAGE_SHIFT; at++)
            CHECK_EQ(model[at].kinds, 0);
        for (; at < m.to >> PM_PAGE_SHIFT; at++) {
            CHECK_EQ(model[at].kinds, m.kinds);
            CHECK_EQ(model[at].access, m.access);
        }
    }
    for (; at < PAGES; at++)
        CHECK_EQ(model[at].kinds, 0);
    CHECK_EQ(pm_marks_any(), count != 0);
    check_free();
}

static void test_random_changes(void) {
    for (unsigned i = 0; i < ROUNDS && !check_failures; i++) {
        unsigned from = (unsigned)rand() % PAGES;
        unsigned to = from + 1 + (unsigned)rand() % (PAGES - from);
        unsigned add = rand() % 3 ? 1u << rand() % 8 : 0, remove = (unsigned)rand() & 255u & ~add;
        int access = rand() % 2;
        CHECK(pm_marks_change(place(from), place(to), add, remove, access));
        change_model(from, to, add, remove, access);
        check_all();
    }
    CHECK(pm_marks_change(0, place(PAGES), 0, 255, 0));
    CHECK(!pm_marks_any());
}

// Whether the kernel stores to the page for us: without a fault in this process.
static bool writable(unsigned page) {
    return madvise(pm_heap_at(place(page)), PM_PAGE_SIZE, 23) == 0; // MADV_POPULATE_WRITE
}

// A mark that begins before the range and ends behind it.
static void test_renewal_of_a_part(void) {
    char *at = mmap(NULL, place(PAGES), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t before = pm_base;
    pm_base = (uint64_t)(uintptr_t)at;
    CHECK(pm_marks_change(place(8), place(32), PM_MARK_ACCESS, 0, PROT_READ));
    pm_marks_renew(place(10), place(12));
    CHECK(writable(9) && !writable(10) && !writable(11) && writable(12));
    pm_marks_lift(place(11), place(20));
    CHECK(!writable(10) && writable(11));
    pm_marks_renew(0, place(PAGES));
    CHECK(writable(7) && !writable(8) && !writable(31) && writable(32));
    pm_marks_drop(place(16), place(24));
    CHECK(!writable(15) && writable(16) && writable(23) && !writable(24));
    struct pm_mark m;
    CHECK(pm_marks_next(place(8), &m) && m.to == place(16));
    CHECK(pm_marks_next(place(16), &m) && m.from == place(24) && m.to == place(32));
    pm_marks_drop(0, place(PAGES));
    CHECK(!pm_marks_any() && writable(8) && writable(31));
    pm_base = before;
}

int main(void) {
    srand(30);
    test_random_changes();
    test_renewal_of_a_part();
    return CHECK_DONE();
}

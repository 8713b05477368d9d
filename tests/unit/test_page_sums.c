// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The table of what the lap's pages hold, against a model of it; and writes around the page cache.
#include "media/journal/journal.h"
#include "media/journal/page_sums.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/geometry.h"
#include "base/os_file.h"
#include "check.h"

enum { FILES = 3, PAGES = 20000 };
static uint64_t model[FILES][PAGES]; // 0: not in the lap; else 1 + what the page is filled with

static const char *page_of(uint64_t with) {
    static char page[2][PM_PAGE_SIZE] __attribute__((aligned(PM_PAGE_SIZE)));
    static unsigned turn;
    char *to = page[turn++ % 2];
    memset(to, (int)with, PM_PAGE_SIZE);
    memcpy(to + PM_PAGE_SIZE - sizeof with, &with, sizeof with);
    return to;
}

static void note(unsigned file, uint64_t first, uint64_t pages, uint64_t with) {
    for (uint64_t i = 0; i < pages; i++) {
        pm_sums_note(file, first + i, 1, page_of(with + i));
        model[file][first + i] = 1 + with + i;
    }
}

// As a commit does that comes to nothing.
static enum pm_sum_is ask(unsigned file, uint64_t page, const char *contents) {
    enum pm_sum_is is = pm_sums_ask(file, page, contents);
    CHECK_EQ(is == PM_SUM_OTHER, pm_sums_taken(file, page));
    pm_sums_undo();
    CHECK(!pm_sums_taken(file, page));
    return is;
}

static bool is(unsigned file, uint64_t page, uint64_t with, enum pm_sum_is has) {
    return ask(file, page, page_of(with)) == has;
}

// All pages are asked in one commit, which comes to nothing.
static unsigned wrong(uint64_t with) {
    unsigned count = 0;
    for (unsigned file = 0; file < FILES; file++)
        for (uint64_t page = 0; page < PAGES; page++) {
            uint64_t has = model[file][page];
            enum pm_sum_is right = !has              ? PM_SUM_NONE
                                   : has == 1 + with ? PM_SUM_SAME
                                                     : PM_SUM_OTHER;
            count += pm_sums_ask(file, page, page_of(with)) != right;
            count += pm_sums_taken(file, page) != (right == PM_SUM_OTHER);
        }
    pm_sums_undo();
    for (unsigned file = 0; file < FILES; file++)
        for (uint64_t page = 0; page < PAGES; page++) {
            uint64_t has = model[file][page];
            count += has && pm_sums_ask(file, page, page_of(has - 1)) != PM_SUM_SAME;
            count += pm_sums_taken(file, page);
            count += pm_sums_backed(file, page, 1) != (has > 1); // 1: zeroes
        }
    return count;
}

// A table that is too large is given up when its lap has ended, and not before.
static void trim(void) {
    enum { MANY = 600000 };
    pm_sums_note(0, 12, 1, NULL);
    note(0, 10, 2, 40);
    pm_sums_trim();
    CHECK(is(0, 11, 41, PM_SUM_SAME) && pm_sums_backed(0, 10, 2));
    CHECK(is(0, 12, 0, PM_SUM_SAME) && !pm_sums_backed(0, 12, 1));
    for (uint64_t page = 0; page < MANY; page++)
        pm_sums_note(1, page, 1, page_of(page));
    CHECK(is(1, MANY - 1, MANY - 1, PM_SUM_SAME) && is(0, 11, 41, PM_SUM_SAME));
    pm_sums_trim();
    CHECK(is(1, MANY - 1, MANY - 1, PM_SUM_NONE) && !pm_sums_backed(0, 10, 2));
    memset(model, 0, sizeof model);
    CHECK(wrong(0) == 0);
}

static void table(void) {
    CHECK(wrong(0) == 0);
    note(1, 5, 3, 70);
    note(0, 5, 1, 71);
    CHECK(wrong(71) == 0);
    CHECK(pm_sums_backed(1, 5, 3) && !pm_sums_backed(1, 4, 3) && !pm_sums_backed(1, 6, 3));
    note(1, 6, 1, 90); // once more
    CHECK(wrong(71) == 0);
    note(2, 0, PAGES, 1000); // more than a usual lap has
    CHECK(wrong(1234) == 0);
    pm_sums_note(2, 100, 10, NULL);
    for (unsigned i = 100; i < 110; i++)
        model[2][i] = 1;
    CHECK(wrong(0) == 0);
    pm_sums_note(2, 1000, 5000, NULL); // a range of zeroes
    for (unsigned i = 1000; i < 6000; i++)
        model[2][i] = 1;
    CHECK(wrong(0) == 0);
    pm_sums_note(1, 1000, 5000, NULL); // the same, of pages that the lap does not have
    CHECK(wrong(0) == 0);
    pm_sums_forget();
    memset(model, 0, sizeof model);
    CHECK(wrong(0) == 0);
    trim();
    note(0, 1, 1, 3);
    CHECK(wrong(3) == 0 && wrong(4) == 0);
}

// A page may be taken more than once in a commit: what it was taken with last counts, also where
// that is what the last commit left. A new page has space when its commit is in force.
static void take(void) {
    note(0, 30, 1, 50);
    pm_sums_take(0, 30, 1, page_of(51));
    CHECK(pm_sums_taken(0, 30) && pm_sums_backed(0, 30, 1));
    CHECK_EQ(pm_sums_ask(0, 30, page_of(50)), PM_SUM_OTHER);
    CHECK_EQ(pm_sums_ask(0, 30, page_of(50)), PM_SUM_SAME);
    CHECK_EQ(pm_sums_ask(0, 30, page_of(52)), PM_SUM_OTHER);
    pm_sums_take(0, 31, 1, page_of(60));
    CHECK(pm_sums_taken(0, 31) && !pm_sums_backed(0, 31, 1));
    CHECK_EQ(pm_sums_ask(0, 31, page_of(60)), PM_SUM_SAME);
    pm_sums_undo();
    CHECK(is(0, 30, 50, PM_SUM_SAME) && is(0, 30, 51, PM_SUM_OTHER));
    CHECK(is(0, 31, 60, PM_SUM_NONE) && !pm_sums_taken(0, 31));
    pm_sums_take(0, 31, 1, page_of(61));
    pm_sums_note(0, 31, 1, page_of(60)); // the journal has it twice, and in this order
    pm_sums_note(0, 31, 1, page_of(61));
    CHECK(is(0, 31, 61, PM_SUM_SAME) && pm_sums_backed(0, 31, 1) && !pm_sums_taken(0, 31));
    pm_sums_take(0, 31, 1, page_of(62));
    pm_sums_note(0, 31, 1, NULL); // released before the instant
    CHECK(is(0, 31, 0, PM_SUM_SAME) && !pm_sums_backed(0, 31, 1));
    pm_sums_forget();
}

// A bit of a page anywhere.
static void each_byte_counts(void) {
    static char page[PM_PAGE_SIZE], other[PM_PAGE_SIZE];
    unsigned same = 0;
    for (size_t i = 0; i < sizeof page; i++)
        page[i] = other[i] = (char)(i * 7 >> 3);
    pm_sums_note(0, 9, 1, page);
    for (size_t bit = 0; bit < 8 * sizeof page; bit += 5) {
        other[bit / 8] ^= (char)(1 << bit % 8);
        same += ask(0, 9, other) != PM_SUM_OTHER;
        other[bit / 8] ^= (char)(1 << bit % 8);
    }
    CHECK(same == 0 && ask(0, 9, other) == PM_SUM_SAME);
}

// What the journal says of itself in the superblock is no change.
static void own_words(void) {
    static char page[PM_PAGE_SIZE];
    struct pm_state *state = (struct pm_state *)(void *)page;
    unsigned file = pm_journal_file(PM_JOURNAL_SUPER, 0);
    state->opens = 3;
    pm_sums_note(file, 1, 1, page);
    state->applied = 7;
    state->lap = 9;
    CHECK_EQ(ask(file, 1, page), PM_SUM_SAME);
    state->pointers = 1;
    CHECK_EQ(ask(file, 1, page), PM_SUM_OTHER);
    state->pointers = 0;
    state->program_crc = 1;
    CHECK_EQ(ask(file, 1, page), PM_SUM_OTHER);
    pm_sums_note(file, 2, 1, page); // its other pages are like all
    state->applied = 8;
    CHECK_EQ(ask(file, 2, page), PM_SUM_OTHER);
}

static void write_anew(const char *folder) {
    char name[256], got[3 * PM_PAGE_SIZE];
    snprintf(name, sizeof name, "%s/pm-test-anew.XXXXXX", folder);
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    int flags = fcntl(fd, F_GETFL);
    CHECK(pm_os_write_all(fd, page_of(1), PM_PAGE_SIZE, 0)); // in the page cache
    CHECK(pm_os_write_anew(fd, page_of(2), PM_PAGE_SIZE, 0));
    CHECK(pm_os_write_anew(fd, page_of(3), PM_PAGE_SIZE, 2 * PM_PAGE_SIZE));
    CHECK(pm_os_write_anew(fd, "odd", 3, PM_PAGE_SIZE + 1)); // not a page
    CHECK(fcntl(fd, F_GETFL) == flags);
    pm_os_forget_pages(fd);
    CHECK(pread(fd, got, sizeof got, 0) == sizeof got);
    CHECK(memcmp(got, page_of(2), PM_PAGE_SIZE) == 0 &&
          memcmp(got + PM_PAGE_SIZE + 1, "odd", 3) == 0);
    CHECK(memcmp(got + 2 * PM_PAGE_SIZE, page_of(3), PM_PAGE_SIZE) == 0);
    close(fd);
    CHECK(!pm_os_write_anew(fd, page_of(2), PM_PAGE_SIZE, 0));
}

int main(void) {
    table();
    take();
    each_byte_counts();
    own_words();
    write_anew("/dev/shm");
    write_anew("/var/tmp");
    return CHECK_DONE();
}

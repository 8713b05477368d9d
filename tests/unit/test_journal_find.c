// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A look at the journal of a heap in use, while a lap ends and another begins: before each read the
// writer goes as far as it may. What is found is the last commit of one of the two laps, or none.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "media/journal/journal.h"

#define COMMITS 3u
#define LATER 10u // the epoch of the next lap's first commit
#define PAGES 2u  // of a commit

static unsigned char file[32 * PM_PAGE_SIZE], lap[sizeof file];
static size_t size;
static size_t room = SIZE_MAX; // bytes of a write that the file takes so far
static void (*before_read)(void);

static bool write_file(unsigned of, const void *from, size_t len, uint64_t at) {
    (void)of;
    memcpy(file + at, from, len < room ? len : room);
    size = at + len > size ? at + len : size;
    return true;
}

static bool read_file(unsigned of, void *to, size_t len, uint64_t at) {
    (void)of;
    if (before_read)
        before_read();
    if (at + len > size) {
        errno = PM_JOURNAL_ENDS;
        return false;
    }
    memcpy(to, file + at, len);
    return true;
}

static bool sync_file(unsigned of) {
    (void)of;
    return true;
}

static const struct pm_journal_io io = {.read = read_file, .write = write_file, .sync = sync_file};
static const uint8_t uuid[16] = "journal of test";
static struct pm_journal journal, kept;
static char *looks;

static void commit(uint64_t epoch, unsigned pages) {
    static const unsigned char page[PM_PAGE_SIZE * 4] = {1, 2, 3};
    pm_journal_begin(&journal, uuid, epoch, 1000 + epoch);
    pm_journal_add_pages(&journal, pm_journal_file(PM_JOURNAL_DATA, 0), epoch, page, pages);
    CHECK(pm_journal_end(&journal));
    pm_journal_count(&journal);
}

// ---- what the writer does before a read ---------------------------------------------------------

static unsigned reads, act_at;
static bool writes_on; // the new lap's first commit, too
static bool acted;

static void act(void) {
    if (reads++ != act_at)
        return;
    acted = true;
    CHECK(pm_journal_end_lap(&journal));
    if (writes_on)
        commit(LATER, PAGES + 1);
}

static void begin_again(void) {
    memcpy(file, lap, sizeof file);
    size = kept.at;
    journal = kept;
    reads = 0;
    acted = false;
}

static void each_instant(void) {
    for (act_at = 0;; act_at++) {
        struct pm_journal_found found;
        begin_again();
        before_read = act;
        CHECK_EQ(pm_journal_find(&io, looks, uuid, &found), 0);
        before_read = NULL;
        CHECK(found.groups == 0 || found.epoch == COMMITS || (writes_on && found.epoch == LATER));
        if (!acted) { // after the last read: the lap is as it was
            CHECK_EQ(found.epoch, COMMITS);
            CHECK_EQ(found.commits, COMMITS);
            return;
        }
    }
}

static void beside_a_lap_that_ends(void) {
    writes_on = false;
    each_instant();
}

static void beside_a_lap_that_begins(void) {
    writes_on = true;
    for (room = 8; room <= 4 * PM_PAGE_SIZE; room = room < 512 ? room * 4 : room + 504)
        each_instant();
    room = SIZE_MAX;
    each_instant();
}

int main(void) {
    journal = (struct pm_journal){.io = &io, .most = PM_JOURNAL_PAGES};
    journal.first = malloc(PM_JOURNAL_BUFFER);
    looks = malloc(PM_JOURNAL_BUFFER);
    CHECK(journal.first && looks);
    for (uint64_t epoch = 1; epoch <= COMMITS; epoch++)
        commit(epoch, PAGES);
    memcpy(lap, file, sizeof file);
    kept = journal;
    beside_a_lap_that_ends();
    beside_a_lap_that_begins();
    free(looks);
    free(journal.first);
    return CHECK_DONE();
}

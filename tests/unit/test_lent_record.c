// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The record of stores that commits lend to a marker: whatever comes between, the marker's look has
// each page that was stored to since its last one, and each commit leaves the files as the memory
// is. With commits that look at the record, and with such that do not.
#include "live/live_record.h"

#include <stdatomic.h>

#include "heap_fixture.h"
#include "media/commit/commit.h"
#include "media/commit/rounds.h"
#include "media/commit/stored_pages.h"
#include "pages/extent_take.h"

enum { PAGES = 3000, STEPS = 1200 };

static struct pm_error err;
static char *memory;
static char shadow[PAGES * PM_PAGE_SIZE]; // what memory is to have
static bool stored[PAGES];                // since the marker's last look
static bool seen[PAGES];
static _Atomic uint32_t alive;
static bool lent;
static unsigned looks, rounds;

static void store(void) {
    for (unsigned n = (unsigned)rnd(20); n; n--) {
        unsigned page = (unsigned)rnd(PAGES);
        size_t at = page * PM_PAGE_SIZE + rnd(PM_PAGE_SIZE);
        memory[at] = shadow[at] = (char)rnd(2); // often as it was
        stored[page] = true;
    }
}

static bool same_as_file(void) {
    static char bytes[PAGES * PM_PAGE_SIZE];
    return pread(pm_heap.shard[0].data.fd, bytes, sizeof bytes, (off_t)pm_heap_offset(memory)) ==
               sizeof bytes &&
           memcmp(bytes, memory, sizeof bytes) == 0;
}

static void commit(void) {
    struct pm_commit_cost cost;
    CHECK(pm_commit_prepare());
    for (unsigned n = (unsigned)rnd(3); n; n--) {
        rounds += pm_commit_round(true) > 0;
        store();
    }
    if (rnd(20) == 0) {
        pm_commit_abandon();
        CHECK(pm_commit_prepare());
    }
    pm_commit_take(rnd(4) != 0, &cost);
    CHECK(pm_commit_finish());
    CHECK(same_as_file() && memcmp(memory, shadow, sizeof shadow) == 0);
}

static void note(char *at, size_t len, void *unused) {
    (void)unused;
    for (char *page = at; page < at + len; page += PM_PAGE_SIZE)
        if (page >= memory && page < memory + PAGES * PM_PAGE_SIZE)
            seen[(page - memory) / PM_PAGE_SIZE] = true;
}

static void look(void) {
    unsigned missed = 0;
    memset(seen, 0, sizeof seen);
    CHECK(pm_live_record_look() != UINT64_MAX);
    pm_live_record_each(note, NULL);
    for (unsigned i = 0; i < PAGES; i++)
        missed += stored[i] && !seen[i];
    CHECK_EQ(missed, 0);
    memset(stored, 0, sizeof stored);
    looks++;
}

static void lend(void) {
    alive = 1;
    CHECK(pm_live_record_prepare(&alive));
    memset(stored, 0, sizeof stored);
    CHECK(pm_live_record_begin());
    if (rnd(2))
        pm_live_record_settle();
    lent = true;
}

// It may be killed.
static void end(void) {
    alive = 0;
    if (rnd(2))
        pm_live_record_end();
    lent = false;
}

// False: an older kernel.
static bool begin(uint64_t watch) {
    pm_options_default();
    pm_options.commit_watch.number = watch;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    pm_options.commit_watch.number = watch;
    memory = pm_extent_address(&pm_extents[pm_extent_allocate(PAGES, 1)]);
    memset(memory, 0, PAGES * PM_PAGE_SIZE);
    memset(shadow, 0, sizeof shadow);
    commit();
    return pm_stored_can();
}

static bool at_times(void) { return rnd(2) == 0; }

static void work(uint64_t watch, bool often) {
    if (!begin(watch))
        return;
    pm_rounds_awaited = at_times; // what a round has not come to is found again
    looks = rounds = 0;
    for (unsigned i = 0; i < STEPS; i++) {
        store();
        unsigned next = (unsigned)rnd(often ? 16 : 64);
        if (next < 6)
            commit();
        else if (next < 10 && lent)
            look();
        else if (next < 12 && !lent)
            lend();
        else if (next == 12 && lent)
            end();
    }
    if (lent)
        end();
    commit();
    CHECK(looks > 10 && (!watch || rounds > 10));
}

static bool always(void) { return true; }

// Whether the kernel keeps a record of stores to any mapping.
static bool is_recorded(void) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps))
        found |= strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " uw") != NULL;
    fclose(maps);
    return found;
}

// Commits have given the record up, and then the marker has protected all pages once more. Each
// would cost the program a fault.
static void give_up(bool killed) {
    if (!begin(1))
        return;
    lend();
    CHECK(!pm_stored_is_alone() && is_recorded());
    pm_rounds_unseen = always;
    CHECK(pm_commit_prepare() && pm_commit_round(true) == 0 && !is_recorded());
    store();
    look();
    CHECK(is_recorded());
    alive = 0;
    if (killed)
        CHECK(!pm_stored_is_lent());
    else
        pm_live_record_end();
    CHECK(!is_recorded());
    commit();
}

// Somebody always waits: a round that is cut short is 8 MiB further than the one before.
static void test_each_round_gets_on(void) {
    unsigned cut = 0;
    if (!begin(1))
        return;
    pm_rounds_awaited = always;
    memset(memory, 1, PAGES * PM_PAGE_SIZE);
    memset(shadow, 1, sizeof shadow);
    CHECK(pm_commit_prepare());
    while (cut < PAGES && pm_commit_round(true) == PM_ROUNDS_CUT)
        cut++;
    CHECK_EQ(cut, 1);
    CHECK(pm_commit_in_rounds() >= PAGES);
    commit();
}

static void test_what_commits_gave_up_ends_with_the_marker(void) { give_up(false); }
static void test_it_ends_after_a_marker_that_was_killed(void) { give_up(true); }

static void test_commits_watch(void) { work(1, false); }
static void test_commits_watch_at_times(void) { work(1400, true); }
static void test_commits_do_not_watch(void) { work(0, true); }

int main(void) {
    RUN_CHILD(commits_watch);
    RUN_CHILD(commits_watch_at_times);
    RUN_CHILD(commits_do_not_watch);
    RUN_CHILD(each_round_gets_on);
    RUN_CHILD(what_commits_gave_up_ends_with_the_marker);
    RUN_CHILD(it_ends_after_a_marker_that_was_killed);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Commits of a heap whose extents come and go: after each, every file holds what the memory holds.
// Between them no file changes. With each way to find copied pages, where pages are dropped or not,
// and with rounds before the instant. What other threads would do between the rounds happens there.
#include "media/commit/commit.h"

#include <sys/resource.h>

#include "blocks/verify.h"
#include "heap_fixture.h"
#include "media/backing/backing.h"
#include "media/backing/work_copy.h"
#include "media/commit/journal_files.h"
#include "media/commit/rounds.h"
#include "media/commit/stored_pages.h"
#include "media/journal/checkpoint.h"
#include "media/own_pages.h"
#include "pages/extent_take.h"

#define HELD 24

static struct pm_error err;
static enum pm_own_way way;

static bool same_bytes(const struct pm_file *file, const char *memory, size_t len) {
    static char bytes[1 << 20];
    for (size_t at = 0, part; at < len; at += part) {
        part = len - at < sizeof bytes ? len - at : sizeof bytes;
        if (pread(file->fd, bytes, part, (off_t)at) != (ssize_t)part ||
            memcmp(bytes, memory + at, part) != 0)
            return false;
    }
    return true;
}

static void check_files(void) {
    const struct pm_shard *s = &pm_heap.shard[0];
    struct stat st;
    CHECK(same_bytes(&s->data, s->data.map, s->frontier));
    CHECK(same_bytes(&s->log, s->log.map, s->log.size));
    CHECK(same_bytes(&s->slabs, s->slabs.map, s->slabs.size));
    CHECK(same_bytes(&pm_heap.super_file, pm_heap.super_file.map, sizeof(struct pm_super_file)));
    CHECK(!pm_work_wanted || memcmp(pm_work_bytes(s), s->data.map, s->frontier) == 0);
    CHECK(fstat(s->data.fd, &st) == 0 && (uint64_t)st.st_size == s->frontier);
}

static void step(void);
static unsigned rounds, abandoned;
static bool quiet; // nothing happens between rounds

static bool says_unseen(void) { return rnd(16) == 0; }
static bool stores_unseen(void) { return true; }

static void make_rounds(void) {
    for (unsigned n = (unsigned)rnd(4); n; n--) {
        rounds += pm_commit_round(true) > 0;
        for (unsigned steps = (unsigned)rnd(8); steps && !quiet; steps--)
            step();
    }
    if (rnd(8))
        return;
    pm_commit_abandon();
    abandoned++;
    CHECK(pm_commit_prepare());
}

static bool commit(bool drop, struct pm_commit_cost *cost) {
    CHECK(pm_commit_prepare());
    if (pm_options.commit_watch.number == 1)
        make_rounds();
    pm_commit_take(drop, cost);
    bool good = pm_commit_finish();
    pm_commit_cut();
    return good;
}

static uint32_t held[HELD];

static void check_zeroes(const struct pm_extent *e) {
    const char *at = pm_extent_address(e);
    uint64_t others = 0;
    for (uint64_t i = 0; i < e->pages * PM_PAGE_SIZE; i += 8)
        others += at[i] != 0;
    CHECK_EQ(others, 0);
}

static void step(void) {
    unsigned i = (unsigned)rnd(HELD);
    if (!held[i]) {
        held[i] = pm_extent_allocate(1 + rnd(400), 1);
        if (held[i] && pm_extents[held[i]].zero)
            check_zeroes(&pm_extents[held[i]]);
        return;
    }
    char *at = pm_extent_address(&pm_extents[held[i]]);
    uint64_t pages = pm_extents[held[i]].pages;
    if (rnd(3) == 0) {
        pm_extent_release(held[i]);
        held[i] = 0;
        if (rnd(2))
            pm_extent_purge(rnd(2));
        return;
    }
    for (unsigned n = (unsigned)rnd(6); n; n--)
        memset(at + rnd(pages) * PM_PAGE_SIZE, (int)rnd(256), 1 + rnd(PM_PAGE_SIZE));
    // What a page had before, it has often again.
    for (unsigned n = (unsigned)rnd(20); n; n--)
        memset(at + rnd(pages) * PM_PAGE_SIZE, (int)rnd(3), PM_PAGE_SIZE);
}

static void test_model(void) {
    struct pm_commit_cost cost;
    uint64_t dropped = 0;
    pm_own_way = way;
    pm_checkpoint_lap = (uint64_t)1 << 20; // so that laps end, whatever a sync takes here
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned n = (unsigned)rnd(20); n; n--)
            step();
        CHECK(commit(rnd(4) != 0, &cost));
        dropped += cost.dropped;
        check_files();
        if (pm_verify(false, &err) != PM_OK)
            CHECK_STR(err.text, "");
    }
    CHECK(dropped > 20);
    CHECK_EQ(pm_own_way, way);
    quiet = true;
    commit(true, &cost);
    pm_commit_force(); // with a checkpoint before it
    commit(true, &cost);
    CHECK_EQ(cost.pages, 0);
    CHECK_EQ(cost.copied, 0); // all shows the files again
    bool watching = pm_options.commit_watch.number == 1 && pm_stored_can() && !pm_rounds_unseen;
    CHECK(!watching || (rounds > 20 && abandoned > 1));
}

// In a round it cannot be read, by a protection that nobody has told us of; at the instant it can.
static void test_unreadable(void) {
    struct pm_commit_cost cost;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    char *at = pm_extent_address(&pm_extents[pm_extent_allocate(2000, 1)]);
    for (unsigned i = 0; i < 3; i++) {
        pm_options.commit_watch.number = i < 2 ? 0 : 1024;
        memset(at, (int)('a' + i), 2000 * PM_PAGE_SIZE);
        CHECK(pm_commit_prepare());
        MUST(mprotect(at + 50 * PM_PAGE_SIZE, PM_PAGE_SIZE, PROT_NONE) == 0);
        pm_commit_round(false);
        MUST(mprotect(at + 50 * PM_PAGE_SIZE, PM_PAGE_SIZE, PROT_READ | PROT_WRITE) == 0);
        pm_commit_take(false, &cost);
        CHECK(pm_commit_finish());
        check_files();
    }
}

// A block of a new heap in commit mode.
static char *new_pages(unsigned pages) {
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    return pm_extent_address(&pm_extents[pm_extent_allocate(pages, 1)]);
}

// Of many copied pages a commit looks at those that were stored to, and the others are given back.
static void test_record(void) {
    enum { PAGES = 6000 };
    struct pm_commit_cost cost;
    uint64_t dropped = 0;
    char *at = new_pages(PAGES);
    memset(at, 'r', PAGES * PM_PAGE_SIZE);
    CHECK(pm_commit_prepare());
    pm_commit_take(false, &cost);
    CHECK(pm_commit_finish() && cost.pages >= PAGES);
    for (unsigned i = 0; i < 4; i++) {
        pm_options.commit_watch.number = 1024;
        CHECK(pm_commit_prepare());
        pm_commit_round(false);
        CHECK_EQ(pm_commit_in_rounds(), 0);
        memset(at + 100 * PM_PAGE_SIZE, (int)('a' + i), PM_PAGE_SIZE);
        uint64_t next = pm_commit_round(false);
        CHECK_EQ(next, pm_stored_can() ? 1 : 0);
        CHECK_EQ(pm_commit_in_rounds(), next);
        memset(at + 100 * PM_PAGE_SIZE, 'r', PM_PAGE_SIZE); // as the last commit left it
        memset(at + 200 * PM_PAGE_SIZE, (int)('a' + i), PM_PAGE_SIZE);
        CHECK(pm_checkpoint_is_durable());
        pm_commit_take(true, &cost);
        CHECK(pm_commit_finish());
        check_files();
        dropped += cost.dropped;
    }
    CHECK(!pm_stored_can() || dropped >= 1000); // a part by each
}

static bool takes_long(void) {
    usleep(20000);
    return false;
}

static uint64_t compared_with(char *stored) {
    struct pm_commit_cost cost;
    memset(stored, 's', 1);
    CHECK(pm_commit_prepare());
    pm_commit_take(false, &cost);
    CHECK(pm_commit_finish());
    check_files();
    return cost.compared;
}

// To begin the record anew costs a question: it goes on where the pages that are compared in vain
// cost less. So each commit finds one page more than the one before it. Where the question costs
// nothing there are never many.
static void check_goes_on(bool (*question)(void)) {
    enum { PAGES = 3000, COMMITS = 20 };
    char *at = new_pages(PAGES);
    uint64_t before = PAGES, compared;
    memset(at, 'r', PAGES * PM_PAGE_SIZE);
    compared_with(at); // all copied pages
    pm_rounds_unseen = question;
    compared_with(at); // the record begins
    for (unsigned i = 0; i < COMMITS && pm_stored_can(); i++, before = compared) {
        compared = compared_with(at + (100 + i * 10) * PM_PAGE_SIZE);
        CHECK(i == 0 || !question ? compared < COMMITS : compared == before + 1);
    }
    pm_rounds_unseen = NULL;
}
static void test_record_goes_on(void) { check_goes_on(takes_long); }
static void test_record_begins_anew(void) { check_goes_on(NULL); }

// Of what no commit had yet, far more than the last one had, a round is enough, too: the next one
// goes on, and finds what was stored to since.
static void test_first_rounds(void) {
    enum { PAGES = 6000 };
    struct pm_commit_cost cost;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    MUST(commit(true, &cost) && pm_commit_last.copied < 100);
    char *at = pm_extent_address(&pm_extents[pm_extent_allocate(PAGES, 1)]);
    memset(at, 'f', PAGES * PM_PAGE_SIZE);
    CHECK(pm_commit_prepare());
    CHECK(!pm_stored_can() || pm_commit_round(true) >= PAGES);
    memset(at, 'g', PM_PAGE_SIZE);
    CHECK(!pm_stored_can() || pm_commit_round(true) == 1);
    CHECK(!pm_stored_can() || pm_commit_in_rounds() > PAGES);
    pm_commit_take(true, &cost);
    CHECK(pm_commit_finish());
    check_files();
}

// What rounds have left is copied at the instant, and looked at afterwards. Stores that come after
// the instant are in the next commit: also to a page that a round had, or that is as before again,
// and where memory has no room for all copies, or a page in the middle cannot be read.
enum { COPIED = 3000, APART = 7 };

static void change_some(char *at, int by) {
    for (unsigned i = 0; i < COPIED; i += APART)
        memset(at + i * PM_PAGE_SIZE, by, 1 + i % PM_PAGE_SIZE);
}

static void check_instant(const char *instant, const char *at, const char *but) {
    const struct pm_shard *s = &pm_heap.shard[0];
    static char page[PM_PAGE_SIZE];
    for (unsigned i = 0; i < COPIED; i++) {
        uint64_t offset = pm_heap_offset(at) - s->offset + i * PM_PAGE_SIZE;
        MUST(pread(s->data.fd, page, PM_PAGE_SIZE, (off_t)offset) == PM_PAGE_SIZE);
        CHECK(memcmp(page, instant + (size_t)i * PM_PAGE_SIZE, PM_PAGE_SIZE) == 0 ||
              at + i * PM_PAGE_SIZE == but);
    }
}

static void test_copies(void) {
    static char instant[COPIED * PM_PAGE_SIZE];
    struct pm_commit_cost cost;
    char *at = new_pages(COPIED);
    memset(at, 'r', COPIED * PM_PAGE_SIZE);
    for (unsigned turn = 0; turn < 6; turn++) {
        CHECK(pm_commit_prepare());
        change_some(at, (int)('a' + turn));
        pm_commit_round(true);
        pm_commit_ready(turn * 100);
        change_some(at + turn % 2 * PM_PAGE_SIZE, (int)('A' + turn));
        memset(at, 'r', COPIED / 2 * PM_PAGE_SIZE);
        char *hidden = at + 2 * APART * (size_t)(turn % 2) * PM_PAGE_SIZE;
        MUST(turn < 4 || mprotect(hidden, PM_PAGE_SIZE, PROT_NONE) == 0);
        pm_commit_take(turn != 2, &cost);
        MUST(turn < 4 || mprotect(hidden, PM_PAGE_SIZE, PROT_READ | PROT_WRITE) == 0);
        memcpy(instant, at, sizeof instant);
        memset(at, (int)('0' + turn), COPIED * PM_PAGE_SIZE);
        uint64_t pages = cost.pages;
        pm_commit_look(&cost);
        bool may = pm_stored_can() && pm_options.commit_memory.number > PM_ROUNDS_JOURNAL;
        CHECK(!may || turn >= 4 || cost.pages > pages);
        pages = cost.pages;
        CHECK(pm_commit_finish());
        CHECK_EQ(pm_commit_last.pages, pages);
        check_instant(instant, at, turn < 4 ? NULL : hidden);
        CHECK(commit(turn % 2, &cost));
        check_files();
    }
}

// A round that has found nothing, and then a large instant: all of the commit lies in the journal's
// memory, until it is in the files.
static void test_empty_round(void) {
    enum { PAGES = 1500 };
    struct pm_commit_cost cost;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    for (unsigned turn = 0; turn < 4; turn++) {
        char *at = pm_extent_address(&pm_extents[pm_extent_allocate(PAGES, 1)]);
        memset(at, 'e', PAGES * PM_PAGE_SIZE);
        MUST(commit(true, &cost));
        CHECK(pm_commit_prepare());
        pm_rounds_unseen = turn & 1 ? stores_unseen : NULL;
        pm_commit_round(true);
        pm_commit_ready(turn & 2 ? PAGES : 100);
        memset(at, 'f', PAGES * PM_PAGE_SIZE);
        pm_commit_take(true, &cost);
        CHECK(pm_commit_finish());
        check_files();
        pm_rounds_unseen = NULL;
    }
}

// A kill comes between two commits.
static void stop_between(void) {
    struct pm_commit_cost cost;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    uint32_t index = pm_extent_allocate(10, 1);
    char *at = pm_extent_address(&pm_extents[index]);
    memset(at, 'a', PM_PAGE_SIZE);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)at);
    MUST(commit(true, &cost));
    memset(at, 'b', PM_PAGE_SIZE);
    pm_extent_release(index);
    pm_extent_purge(true);
    pm_extent_allocate(3000, 1);
}

static void test_killed(void) {
    CHECK_EQ(in_child(stop_between), 0);
    pm_options_default();
    MUST(fixture_reopen(PM_OPEN_EXISTING, &err) == PM_OK);
    const char *at = (const char *)(uintptr_t)pm_heap_slot(0);
    MUST(at);
    CHECK(at[0] == 'a' && at[PM_PAGE_SIZE - 1] == 'a');
    CHECK_EQ(pm_extents[*pm_page_extent(pm_heap_offset(at) >> PM_PAGE_SHIFT)].state,
             PM_EXTENT_ACTIVE);
}

// A limit of file size in the place of a full medium: no signal, the last commit stands, and the
// next one succeeds once there is room.
static void test_no_room(void) {
    struct pm_commit_cost cost;
    struct rlimit limit;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    uint32_t index = pm_extent_allocate(900, 1);
    char *at = pm_extent_address(&pm_extents[index]);
    MUST(commit(true, &cost));
    memset(at, 'n', 900 * PM_PAGE_SIZE);
    MUST(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct rlimit low = {2 << 20, limit.rlim_max};
    MUST(setrlimit(RLIMIT_FSIZE, &low) == 0);
    CHECK(!commit(true, &cost));
    CHECK_EQ(errno, EFBIG);
    char byte = 1;
    CHECK(pread(pm_heap.shard[0].data.fd, &byte, 1, (off_t)pm_heap_offset(at)) == 1 && byte == 0);
    CHECK_EQ(at[0], 'n');
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(commit(true, &cost));
    check_files();
}

// The same of a commit that goes by the record of stores: what it has looked at is not in the next
// record, and must be looked at again.
static void test_no_room_for_rounds(void) {
    struct pm_commit_cost cost;
    struct rlimit limit;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    char *at = pm_extent_address(&pm_extents[pm_extent_allocate(100, 1)]);
    char *more = pm_extent_address(&pm_extents[pm_extent_allocate(900, 1)]);
    for (unsigned i = 0; i < 2; i++) {
        memset(at, (int)('k' + i), 100 * PM_PAGE_SIZE);
        MUST(commit(false, &cost));
    }
    memset(at, 'n', 100 * PM_PAGE_SIZE);
    memset(more, 'n', 900 * PM_PAGE_SIZE);
    MUST(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct rlimit low = {2 << 20, limit.rlim_max};
    MUST(setrlimit(RLIMIT_FSIZE, &low) == 0);
    CHECK(!commit(true, &cost));
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(commit(false, &cost));
    check_files();
}

// A file that was cut, and is as long again within the lap, has zeroes where it had something.
static void test_cut(void) {
    struct pm_commit_cost cost;
    quiet = true;
    pm_own_way = way;
    fixture_new_heap();
    MUST(pm_heap_journal(&err) == PM_OK);
    struct pm_shard *s = &pm_heap.shard[0];
    MUST(pm_extent_allocate(50, 1));
    uint64_t end = s->frontier, from = end - 50 * PM_PAGE_SIZE; // a lap has room for that
    char *at = pm_heap_at(s->offset + from);
    for (unsigned i = 0; i < 3; i++) {
        memset(at, 'c', end - from);
        CHECK(commit(false, &cost));
        check_files();
        memset(at, 'd', end - from);
        pm_commit_round(true);
        MUST(pm_shard_set_frontier(s, from));
        CHECK(pm_commit_prepare());
        pm_commit_take(false, &cost);
        CHECK(pm_commit_finish());
        char byte = 1; // the file is cut afterwards
        CHECK(pread(s->data.fd, &byte, 1, (off_t)from) == 1 && byte == 0);
        CHECK(commit(false, &cost));
        check_files();
        MUST(pm_shard_set_frontier(s, end));
        if (i)
            CHECK(commit(false, &cost)); // it is longer, and has nothing there yet
    }
}

int main(void) {
    static const enum pm_own_way ways[] = {PM_OWN_SCAN, PM_OWN_PAGEMAP, PM_OWN_ALL};
    pm_options_default();
    for (unsigned i = 0; i < 3; i++) {
        way = ways[i];
        RUN_CHILD(model);
        RUN_CHILD(cut);
    }
    way = ways[0];
    for (uint64_t megabytes = 0; megabytes < 8; megabytes += 3) { // of which most commits need more
        pm_options.commit_memory.number = megabytes << 20;
        RUN_CHILD(model);
    }
    RUN_CHILD(killed);
    RUN_CHILD(no_room);
    RUN_CHILD(record);
    RUN_CHILD(unreadable);
    pm_options.commit_watch.number = 1024;
    RUN_CHILD(record_goes_on);
    RUN_CHILD(record_begins_anew);
    RUN_CHILD(first_rounds);
    RUN_CHILD(empty_round);
    for (uint64_t megabytes = 0; megabytes < 8; megabytes += 3) {
        pm_options.commit_memory.number = megabytes << 20;
        RUN_CHILD(copies);
    }
    pm_options.commit_watch.number = 1;
    for (unsigned i = 0; i < 4; i++) {
        pm_rounds_unseen = i == 3 ? says_unseen : NULL;
        RUN_CHILD(model);
    }
    pm_rounds_unseen = NULL;
    RUN_CHILD(cut);
    quiet = true;
    RUN_CHILD(no_room_for_rounds);
    quiet = false;
    RUN_CHILD(no_room);
    pm_work_wanted = true; // PMALLOC_COMMIT_DIR
    for (unsigned i = 0; i < 2; i++) {
        way = ways[i];
        RUN_CHILD(model);
    }
    RUN_CHILD(killed);
    RUN_CHILD(no_room);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stored_pages.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/inherited_filter.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/own_memory.h"
#include "base/pagemap_scan.h"
#include "base/store_record.h"
#include "journal_files.h"

static struct {
    int fd;
    uint64_t dev, ino;
    pid_t process;
} record = {.fd = -1};
static _Atomic bool given_way;
// Commits look at it. Else what it protects is a marker's, and is of no use when that has ended.
static _Atomic bool commits_watch;

// To whom the record is lent.
enum user {
    NOBODY,
    ALONE, // commits do not use it meanwhile
    BOTH,
};
static struct {
    _Atomic int user;
    _Atomic bool lost; // the marker cannot be told all
    const _Atomic uint32_t *alive;
    struct pm_stored_runs told; // what commits have found since the marker's last look
    struct pm_stored_runs owed; // what commits have not looked at: what the marker has found, and
                                // what a round that was cut short has left
    bool owes_all;              // there was no room for it
} lent;

static bool is_open(void) {
    return record.fd >= 0 && pm_os_fd_is(record.fd, record.dev, record.ino);
}

static bool is_ours(void) { return record.process == getpid() && is_open(); }

int pm_stored_fd(void) { return is_ours() ? record.fd : -1; }

static bool can(void) {
    return record.fd >= 0 && pm_own_way == PM_OWN_SCAN && !pm_stored_gives_way() && is_ours();
}

static bool has_user(void) {
    if (lent.user != NOBODY && !atomic_load_explicit(lent.alive, memory_order_acquire))
        pm_stored_recall();
    return lent.user != NOBODY;
}

bool pm_stored_can(void) { return can() && !(has_user() && lent.user == ALONE); }

bool pm_stored_gives_way(void) { return atomic_load_explicit(&given_way, memory_order_relaxed); }

void pm_stored_give_way(void) {
    atomic_store_explicit(&given_way, true, memory_order_relaxed);
    pm_stored_end();
}

// A low number is the program's.
static void keep(int fd) {
    struct stat st;
    int high = pm_os_fd_high(fd);
    bool good = high != fd && fstat(high, &st) == 0;
    if (good)
        record.fd = high, record.dev = st.st_dev, record.ino = st.st_ino;
    else if (high >= 0)
        close(high);
}

void pm_stored_begin(void) {
    if (is_ours())
        return;
    pm_stored_end();    // a forked child's is its parent's
    lent.user = NOBODY; // and so is a marker
    commits_watch = false;
    record.process = getpid();
    bool may = !pm_inherited_ends(PM_INHERITED_USERFAULTFD);
    int fd = may ? (int)syscall(SYS_userfaultfd, PM_STORE_RECORD_FLAGS) : -1;
    if (fd >= 0 && !pm_store_record_prepare(fd))
        close(fd);
    else if (fd >= 0)
        keep(fd);
}

// In pieces, as the program's faults wait for each.
#define PIECE ((uint64_t)16 << 20)

static bool unprotect(const struct pm_shard *s) {
    uint64_t start = (uintptr_t)s->data.map, at = 0;
    bool good = true;
    for (uint64_t end = s->frontier; good && at + PIECE < end; at += PIECE)
        good = pm_store_record_end(record.fd, start + at, PIECE);
    return good && pm_store_record_end(record.fd, start + at, s->data.reach - at);
}

static bool unprotect_all(void) {
    bool good = true;
    for (unsigned i = 0; good && i < pm_heap.shards; i++)
        good = unprotect(&pm_heap.shard[i]);
    return good;
}

// A marker has a copy of the descriptor, which alone would keep the kernel's record until its end.
void pm_stored_end(void) {
    pm_stored_lose();
    if (lent.user != NOBODY && is_ours())
        unprotect_all();
    if (is_open())
        pm_os_close(record.fd);
    record.fd = -1;
}

// ---- pages that were stored to ------------------------------------------------------------------

#define MOST ((size_t)1 << 20)

static struct pm_stored_runs found;
static uint64_t found_pages;
static struct {
    size_t from, to;
    uint64_t page; // how many pages were found before
} of[PM_JOURNAL_FILES];

static bool has_room(struct pm_stored_runs *runs) {
    if (!runs->run) {
        runs->room = pm_own_room(sizeof *runs->run, MOST);
        runs->run = pm_own_reserve(runs->room * sizeof *runs->run);
    }
    return runs->run != NULL;
}

static bool add(struct pm_stored_runs *to, const struct pm_pagemap_region *run, size_t count) {
    bool fits = count <= to->room - to->count;
    if (fits && count)
        memcpy(to->run + to->count, run, count * sizeof *run);
    to->count += fits ? count : 0;
    return fits;
}

// All that may come to lie there: a mapping that is newer than the last look is not watched yet.
static bool watch(const struct pm_file *f) {
    return pm_store_record_watch(record.fd, (uintptr_t)f->map, f->reach);
}

// Pages of the file that are there, and were only read, are found once. Not to ask for them spares
// the kernel a look at what it knows of each page: that takes a millisecond or two for 1 GiB,
// instead of 14. But pages that are not there must stay without protection: they would look as if
// they were swapped out.
static bool scan(struct pm_stored_runs *runs, int pagemap, uint64_t start, uint64_t end,
                 bool protect) {
    struct pm_pagemap_scan s = {.flags = PM_SCAN_MUST_WATCH | (protect ? PM_SCAN_PROTECT : 0),
                                .start = start,
                                .end = end,
                                .category_mask = PM_SCAN_WRITTEN,
                                .category_anyof_mask = PM_SCAN_PRESENT | PM_SCAN_SWAPPED,
                                .return_mask = PM_SCAN_WRITTEN};
    long some = pm_pagemap_scan_to(pagemap, &s, runs->run + runs->count, runs->room - runs->count);
    runs->count += some > 0 ? (size_t)some : 0;
    return some >= 0 && s.start >= end;
}

// Where the kernel comes upon a mapping that is not watched, another thread has made it since. Of
// what was protected before that it tells nothing.
static bool find(struct pm_stored_runs *runs, unsigned file, int pagemap, char *at, size_t len,
                 bool anew) {
    return !len || (pagemap >= 0 && has_room(runs) && watch(pm_journal_heap_file(file)) &&
                    scan(runs, pagemap, (uintptr_t)at, (uintptr_t)at + len, anew));
}

// Once. It comes behind what is found now, so it is not by rising address.
static bool take_owed(const struct pm_file *f) {
    struct pm_stored_runs *owed = &lent.owed;
    size_t left = 0;
    for (size_t i = 0; i < owed->count; i++)
        if (owed->run[i].start - (uintptr_t)f->map >= f->reach || !add(&found, &owed->run[i], 1))
            owed->run[left++] = owed->run[i];
    bool all = left == 0 || found.count < found.room;
    owed->count = left;
    return all;
}

bool pm_stored_find(unsigned file, int pagemap, char *at, size_t len, bool anew) {
    of[file].from = found.count;
    of[file].page = found_pages;
    bool may = pm_stored_can() && !lent.owes_all;
    if (may)
        commits_watch = true;
    bool good = may && find(&found, file, pagemap, at, len, anew);
    size_t to = found.count;
    if (lent.user == BOTH && file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA &&
        !add(&lent.told, found.run + of[file].from, to - of[file].from))
        lent.lost = true;
    good = good && take_owed(pm_journal_heap_file(file));
    of[file].to = found.count;
    for (size_t i = of[file].from; i < of[file].to; i++)
        found_pages += (found.run[i].end - found.run[i].start) / PM_PAGE_SIZE;
    return good;
}

uint64_t pm_stored_pages(void) { return found_pages; }

void pm_stored_part(unsigned file, uint64_t from, uint64_t to, pm_own_fn *fn, void *arg) {
    uint64_t page = of[file].page, end;
    for (size_t i = of[file].from; i < of[file].to && page < to; i++, page = end) {
        char *at = (char *)(uintptr_t)found.run[i].start;
        end = page + (found.run[i].end - found.run[i].start) / PM_PAGE_SIZE;
        uint64_t first = page > from ? page : from, last = end < to ? end : to;
        if (first < last)
            fn(at + (first - page) * PM_PAGE_SIZE, (last - first) * PM_PAGE_SIZE, arg);
    }
}

struct each {
    pm_stored_known_fn *known;
    pm_own_fn *fn;
    void *arg;
    int pagemap;
};

// Runs that lie near each other. To ask for all of them by one call takes less time than a call for
// each, although the pages between them are looked at, too.
#define NEAR ((size_t)64 * PM_PAGE_SIZE)
static struct {
    struct {
        char *at, *end;
    } run[64];
    size_t runs;
} nearby;

// The copied pages are [at, at + len). They may begin anew from the first one.
static void tell_nearby(char *at, size_t len, void *each) {
    const struct each *e = each;
    for (size_t i = 0; i < nearby.runs; i++) {
        char *from = at > nearby.run[i].at ? at : nearby.run[i].at;
        char *to = at + len < nearby.run[i].end ? at + len : nearby.run[i].end;
        if (from < to)
            e->fn(from, (size_t)(to - from), e->arg);
    }
}

static void ask_nearby(struct each *e) {
    if (nearby.runs)
        pm_own_pages_by(e->pagemap, nearby.run[0].at,
                        (size_t)(nearby.run[nearby.runs - 1].end - nearby.run[0].at), tell_nearby,
                        e);
    nearby.runs = 0;
}

static void ask(char *at, size_t len, void *each) {
    const size_t most = sizeof nearby.run / sizeof nearby.run[0];
    const struct each *e = each;
    if (e->known(at, len)) {
        e->fn(at, len, e->arg);
        return;
    }
    if (nearby.runs == most ||
        (nearby.runs && (size_t)(at - nearby.run[nearby.runs - 1].end) > NEAR))
        ask_nearby(each);
    nearby.run[nearby.runs].at = at;
    nearby.run[nearby.runs++].end = at + len;
}

void pm_stored_each(unsigned file, int pagemap, uint64_t from, uint64_t to,
                    pm_stored_known_fn *known, pm_own_fn *fn, void *arg) {
    struct each each = {known, fn, arg, pagemap};
    pm_stored_part(file, from, to, ask, &each);
    ask_nearby(&each);
}

void pm_stored_owe(uint64_t from) {
    uint64_t page = 0, pages;
    for (size_t i = 0; i < found.count; i++, page += pages) {
        struct pm_pagemap_region rest = found.run[i];
        pages = (rest.end - rest.start) / PM_PAGE_SIZE;
        if (page + pages <= from)
            continue;
        rest.start += page < from ? (from - page) * PM_PAGE_SIZE : 0;
        if (!has_room(&lent.owed) || !add(&lent.owed, &rest, 1))
            lent.owes_all = true;
    }
}

void pm_stored_none(void) {
    found.count = found_pages = 0;
    memset(of, 0, sizeof of);
}

bool pm_stored_forget(unsigned file) {
    const struct pm_file *f = pm_journal_heap_file(file);
    commits_watch = false;
    lent.owed.count = 0; // all are found again, by the marker, too
    lent.owes_all = false;
    return !f->map || !is_ours() || pm_store_record_end(record.fd, (uintptr_t)f->map, f->reach);
}

// ---- lent to a marker ---------------------------------------------------------------------------

bool pm_stored_lend(bool watched, const _Atomic uint32_t *alive) {
    if (!can() || !has_room(&lent.told) || !has_room(&lent.owed))
        return false;
    lent.told.count = 0; // what commits are owed may be an earlier marker's
    lent.lost = false;
    lent.alive = alive;
    lent.user = watched ? BOTH : ALONE;
    return true;
}

bool pm_stored_is_lent(void) { return has_user() && !lent.lost; }

bool pm_stored_is_alone(void) { return lent.user == ALONE; }

void pm_stored_lose(void) { lent.lost = true; }

bool pm_stored_told(struct pm_stored_runs *runs) {
    runs->count = 0;
    bool good = lent.user != NOBODY && !lent.lost && has_room(runs) &&
                add(runs, lent.told.run, lent.told.count);
    lent.told.count = 0;
    return good;
}

void pm_stored_tell(const struct pm_stored_runs *runs) {
    if (!add(&lent.told, runs->run, runs->count))
        lent.lost = true;
}

// Its maker's process is not the marker's, which has the same descriptor.
bool pm_stored_take(struct pm_stored_runs *runs, unsigned file, int pagemap, char *at, size_t len) {
    size_t before = runs->count;
    bool good = is_open() && find(runs, file, pagemap, at, len, true);
    if (lent.user == BOTH && (!good || !add(&lent.owed, runs->run + before, runs->count - before)))
        lent.owes_all = true;
    return good;
}

// A page that stays protected would look as if nobody had stored to it since the last commit. Where
// that cannot be mended the record is closed, by who has its descriptor: the marker's is a copy.
void pm_stored_recall(void) {
    bool good = lent.user == NOBODY || commits_watch || !is_open() || unprotect_all();
    if (!good && record.process != getpid())
        return; // when it has ended, whoever asks next does it
    lent.user = NOBODY;
    if (!good)
        pm_stored_end();
}

// ---- pages that were not stored to --------------------------------------------------------------

static void tell(uint64_t start, uint64_t end, void *each) {
    const struct each *e = each;
    e->fn((char *)(uintptr_t)start, end - start, e->arg);
}

static bool scan_not(int pagemap, char *at, size_t len, const struct each *each) {
    struct pm_pagemap_scan s = {.flags = PM_SCAN_MUST_WATCH,
                                .start = (uintptr_t)at,
                                .end = (uintptr_t)at + len,
                                .category_inverted = PM_SCAN_FILE | PM_SCAN_WRITTEN,
                                .category_mask = PM_SCAN_FILE | PM_SCAN_WRITTEN | PM_SCAN_PRESENT,
                                .return_mask = PM_SCAN_PRESENT};
    return pm_pagemap_scan(pagemap, &s, tell, (void *)(uintptr_t)each);
}

// `fn` may make new mappings.
bool pm_stored_not(unsigned file, int pagemap, char *at, size_t len, pm_own_fn *fn, void *arg) {
    const struct each each = {.fn = fn, .arg = arg, .pagemap = pagemap};
    return pm_stored_can() && !lent.owes_all && !lent.owed.count &&
           (scan_not(pagemap, at, len, &each) ||
            (watch(pm_journal_heap_file(file)) && scan_not(pagemap, at, len, &each)));
}

static void add_pages(uint64_t start, uint64_t end, void *pages) {
    *(uint64_t *)pages += (end - start) / PM_PAGE_SIZE;
}

bool pm_stored_count(char *at, size_t len, int pagemap, uint64_t *pages) {
    struct pm_pagemap_scan s = {.start = (uintptr_t)at,
                                .end = (uintptr_t)at + len,
                                .category_inverted = PM_SCAN_FILE,
                                .category_mask = PM_SCAN_FILE | PM_SCAN_PRESENT,
                                .return_mask = PM_SCAN_PRESENT};
    *pages = 0;
    return pm_stored_can() && pm_pagemap_scan(pagemap, &s, add_pages, pages);
}

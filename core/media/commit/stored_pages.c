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

static bool is_open(void) {
    return record.fd >= 0 && pm_os_fd_is(record.fd, record.dev, record.ino);
}

static bool is_ours(void) { return record.process == getpid() && is_open(); }

int pm_stored_fd(void) { return is_ours() ? record.fd : -1; }

bool pm_stored_can(void) {
    return record.fd >= 0 && pm_own_way == PM_OWN_SCAN && !pm_stored_gives_way() && is_ours();
}

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
    pm_stored_end(); // a forked child's is its parent's
    record.process = getpid();
    bool may = !pm_inherited_ends(PM_INHERITED_USERFAULTFD);
    int fd = may ? (int)syscall(SYS_userfaultfd, PM_STORE_RECORD_FLAGS) : -1;
    if (fd >= 0 && !pm_store_record_prepare(fd))
        close(fd);
    else if (fd >= 0)
        keep(fd);
}

void pm_stored_end(void) {
    if (is_open())
        pm_os_close(record.fd);
    record.fd = -1;
}

// ---- pages that were stored to ------------------------------------------------------------------

#define MOST ((size_t)1 << 20)

static struct {
    struct pm_pagemap_region *run;
    size_t room, count;
    uint64_t pages;
    struct {
        size_t from, to;
        uint64_t page; // how many pages were found before
    } of[PM_JOURNAL_FILES];
} found;

static bool has_room(void) {
    if (!found.run) {
        found.room = pm_own_room(sizeof *found.run, MOST);
        found.run = pm_own_reserve(found.room * sizeof *found.run);
    }
    return found.run != NULL;
}

// All that may come to lie there: a mapping that is newer than the last look is not watched yet.
static bool watch(const struct pm_file *f) {
    return pm_store_record_watch(record.fd, (uintptr_t)f->map, f->reach);
}

// Pages of the file that are there, and were only read, are found once. Not to ask for them spares
// the kernel a look at what it knows of each page: that takes a millisecond or two for 1 GiB,
// instead of 14. But pages that are not there must stay without protection: they would look as if
// they were swapped out.
static bool protect(int pagemap, uint64_t start, uint64_t end) {
    struct pm_pagemap_scan s = {.flags = PM_SCAN_PROTECT | PM_SCAN_MUST_WATCH,
                                .start = start,
                                .end = end,
                                .category_mask = PM_SCAN_WRITTEN,
                                .category_anyof_mask = PM_SCAN_PRESENT | PM_SCAN_SWAPPED,
                                .return_mask = PM_SCAN_WRITTEN};
    long runs = pm_pagemap_scan_to(pagemap, &s, found.run + found.count, found.room - found.count);
    found.count += runs > 0 ? (size_t)runs : 0;
    return runs >= 0 && s.start >= end;
}

// Where the kernel comes upon a mapping that is not watched, another thread has made it since. Of
// what was protected before that it tells nothing.
bool pm_stored_find(unsigned file, int pagemap, char *at, size_t len) {
    const struct pm_file *f = pm_journal_heap_file(file);
    found.of[file].from = found.count;
    found.of[file].page = found.pages;
    bool good = !len || (pagemap >= 0 && pm_stored_can() && has_room() && watch(f) &&
                         protect(pagemap, (uintptr_t)at, (uintptr_t)at + len));
    found.of[file].to = found.count;
    for (size_t i = found.of[file].from; i < found.count; i++)
        found.pages += (found.run[i].end - found.run[i].start) / PM_PAGE_SIZE;
    return good;
}

uint64_t pm_stored_pages(void) { return found.pages; }

void pm_stored_part(unsigned file, uint64_t from, uint64_t to, pm_own_fn *fn, void *arg) {
    uint64_t page = found.of[file].page, end;
    for (size_t i = found.of[file].from; i < found.of[file].to && page < to; i++, page = end) {
        char *at = (char *)(uintptr_t)found.run[i].start;
        end = page + (found.run[i].end - found.run[i].start) / PM_PAGE_SIZE;
        uint64_t first = page > from ? page : from, last = end < to ? end : to;
        if (first < last)
            fn(at + (first - page) * PM_PAGE_SIZE, (last - first) * PM_PAGE_SIZE, arg);
    }
}

struct each {
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
    if (nearby.runs == most ||
        (nearby.runs && (size_t)(at - nearby.run[nearby.runs - 1].end) > NEAR))
        ask_nearby(each);
    nearby.run[nearby.runs].at = at;
    nearby.run[nearby.runs++].end = at + len;
}

void pm_stored_each(unsigned file, int pagemap, uint64_t from, pm_own_fn *fn, void *arg) {
    struct each each = {fn, arg, pagemap};
    pm_stored_part(file, from, UINT64_MAX, ask, &each);
    ask_nearby(&each);
}

void pm_stored_none(void) {
    found.count = found.pages = 0;
    memset(found.of, 0, sizeof found.of);
}

bool pm_stored_forget(unsigned file) {
    const struct pm_file *f = pm_journal_heap_file(file);
    return !f->map || !is_ours() || pm_store_record_end(record.fd, (uintptr_t)f->map, f->reach);
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
    const struct each each = {fn, arg, pagemap};
    return pm_stored_can() &&
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

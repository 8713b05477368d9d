// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "live_record.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/inherited_filter.h"
#include "base/own_memory.h"
#include "base/pagemap_scan.h"
#include "base/store_record.h"
#include "media/backing/marks.h"
#include "media/heap.h"

#define PIECE ((uint64_t)16 << 20)
#define MOST_RUNS ((size_t)1 << 20)

static int faults; // of who has begun it
static struct {
    uint64_t start, len; // what is in the record; blocks behind it are younger
} part[PM_SHARDS];
static struct pm_pagemap_region *run; // the last look's
static size_t run_count;

// Where the program has mapped something over its blocks, what lies there is not the heap's.
bool pm_live_record_can(void) { return !pm_heap_is_journaled() && !pm_marks_any(); }

// Of anonymous memory pages that are not there stay without protection: a protected one would look
// as if it was swapped out. In a file a page that was stored to may be gone from memory.
static struct pm_pagemap_scan scan_of(unsigned shard) {
    struct pm_pagemap_scan s = {.flags = PM_SCAN_MUST_WATCH,
                                .start = part[shard].start,
                                .end = part[shard].start + part[shard].len,
                                .category_mask = PM_SCAN_WRITTEN,
                                .return_mask = PM_SCAN_WRITTEN};
    if (!pm_heap_on_media())
        s.category_anyof_mask = PM_SCAN_PRESENT | PM_SCAN_SWAPPED;
    return s;
}

// Notes what it protects, unless it is the first look.
static bool protect(unsigned shard, int pagemap, bool notes) {
    struct pm_pagemap_scan s = scan_of(shard);
    s.flags |= PM_SCAN_PROTECT;
    if (!notes || !part[shard].len)
        return !part[shard].len || pm_pagemap_scan(pagemap, &s, NULL, NULL);
    long runs = pm_pagemap_scan_to(pagemap, &s, run + run_count, MOST_RUNS - run_count);
    run_count += runs > 0 ? (size_t)runs : 0;
    return runs >= 0 && s.start >= s.end;
}

static bool begin_in(unsigned shard, int pagemap) {
    return (!part[shard].len ||
            pm_store_record_watch(faults, part[shard].start, part[shard].len)) &&
           protect(shard, pagemap, false);
}

static bool has_room(void) {
    if (!run)
        run = pm_own_reserve(MOST_RUNS * sizeof *run);
    return run;
}

bool pm_live_record_begin(void) {
    if (pm_inherited_ends(PM_INHERITED_USERFAULTFD))
        return false;
    faults = (int)syscall(SYS_userfaultfd, PM_STORE_RECORD_FLAGS);
    int pagemap = pm_own_open();
    bool good = faults >= 0 && pagemap >= 0 && has_room() && pm_store_record_prepare(faults);
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        part[i].start = (uintptr_t)pm_heap_at(s->offset);
        part[i].len = __atomic_load_n(&s->frontier, __ATOMIC_RELAXED) & ~(PM_PAGE_SIZE - 1);
        good = begin_in(i, pagemap);
    }
    pm_own_close(pagemap);
    return good;
}

// What has come behind the record was stored to since.
static void add_younger(unsigned shard) {
    uint64_t frontier = pm_heap.shard[shard].frontier, len = part[shard].len;
    if (frontier > len && run_count < MOST_RUNS)
        run[run_count++] = (struct pm_pagemap_region){.start = part[shard].start + len,
                                                      .end = part[shard].start + frontier};
}

uint64_t pm_live_record_look(void) {
    int pagemap = pm_own_open();
    bool good = pagemap >= 0 && !pm_marks_any();
    uint64_t pages = 0;
    run_count = 0;
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        good = protect(i, pagemap, true);
        add_younger(i);
    }
    pm_own_close(pagemap);
    for (size_t i = 0; i < run_count; i++)
        pages += (run[i].end - run[i].start) / PM_PAGE_SIZE;
    return good && run_count < MOST_RUNS ? pages : UINT64_MAX;
}

void pm_live_record_each(pm_own_fn *fn, void *arg) {
    for (size_t i = 0; i < run_count; i++)
        fn((char *)(uintptr_t)run[i].start, run[i].end - run[i].start, arg);
}

void pm_live_record_end(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        for (uint64_t at = 0; at < part[i].len; at += PIECE) {
            uint64_t rest = part[i].len - at;
            pm_store_record_end(faults, part[i].start + at, rest < PIECE ? rest : PIECE);
        }
    close(faults);
}

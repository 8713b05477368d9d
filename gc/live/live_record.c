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
#include "media/commit/rounds.h"
#include "media/commit/stored_pages.h"
#include "media/heap.h"
#include "media/journal/journal_format.h"

#define PIECE ((uint64_t)16 << 20)
#define MOST_RUNS ((size_t)1 << 20)

static int faults; // of who has begun it
static struct {
    uint64_t start, len; // what is in the record; blocks behind it are younger
} part[PM_SHARDS];
static struct pm_stored_runs look; // what the last one has found

static bool lent; // it is the commits'

// ---- its own ------------------------------------------------------------------------------------

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
    long runs = pm_pagemap_scan_to(pagemap, &s, look.run + look.count, look.room - look.count);
    look.count += runs > 0 ? (size_t)runs : 0;
    return runs >= 0 && s.start >= s.end;
}

static bool begin_in(unsigned shard, int pagemap) {
    return (!part[shard].len ||
            pm_store_record_watch(faults, part[shard].start, part[shard].len)) &&
           protect(shard, pagemap, false);
}

static bool has_room(void) {
    look.room = MOST_RUNS;
    if (!look.run)
        look.run = pm_own_reserve(look.room * sizeof *look.run);
    return look.run;
}

static bool begin_own(void) {
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
    if (frontier > len && look.count < look.room)
        look.run[look.count++] = (struct pm_pagemap_region){.start = part[shard].start + len,
                                                            .end = part[shard].start + frontier};
}

static bool look_at_own(int pagemap) {
    bool good = true;
    look.count = 0;
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        good = protect(i, pagemap, true);
        add_younger(i);
    }
    return good;
}

static void end_own(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        for (uint64_t at = 0; at < part[i].len; at += PIECE) {
            uint64_t rest = part[i].len - at;
            pm_store_record_end(faults, part[i].start + at, rest < PIECE ? rest : PIECE);
        }
    close(faults);
}

// ---- the commits' -------------------------------------------------------------------------------

static bool take_all(int pagemap) {
    bool good = pagemap >= 0;
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        good = pm_stored_take(&look, pm_journal_file(PM_JOURNAL_DATA, i), pagemap, s->data.map,
                              __atomic_load_n(&s->frontier, __ATOMIC_RELAXED));
    }
    return good;
}

static bool take_lent(void) {
    int pagemap = pm_own_open();
    look.count = 0;
    bool good = take_all(pagemap);
    pm_own_close(pagemap);
    return good;
}

// Where commits look at the record as well, only who is held may take from it: they would miss what
// somebody has taken, and has not told them yet.
static bool lend(const _Atomic uint32_t *alive) {
    return pm_rounds_lend(alive) && (pm_stored_is_alone() || take_lent());
}

static bool begin_lent(void) { return !pm_stored_is_alone() || take_lent(); }

// ---- either -------------------------------------------------------------------------------------

// Where the program has mapped something over its blocks, what lies there is not the heap's.
bool pm_live_record_prepare(const _Atomic uint32_t *alive) {
    lent = pm_heap_is_journaled();
    return !pm_marks_any() && (!lent || lend(alive));
}

bool pm_live_record_begin(void) { return lent ? begin_lent() : begin_own(); }

// The kernel knows pages of a file that are there for the first time as stored to.
void pm_live_record_settle(void) {
    if (lent && pm_stored_is_alone()) {
        if (!take_lent())
            pm_stored_lose();
        pm_stored_tell(&look);
    }
}

uint64_t pm_live_record_look(void) {
    int pagemap = pm_own_open();
    uint64_t pages = 0;
    bool good = pagemap >= 0 && !pm_marks_any() &&
                (lent ? pm_stored_told(&look) && take_all(pagemap) : look_at_own(pagemap));
    pm_own_close(pagemap);
    for (size_t i = 0; i < look.count; i++)
        pages += (look.run[i].end - look.run[i].start) / PM_PAGE_SIZE;
    return good && look.count < look.room ? pages : UINT64_MAX;
}

void pm_live_record_each(pm_own_fn *fn, void *arg) {
    for (size_t i = 0; i < look.count; i++)
        fn((char *)(uintptr_t)look.run[i].start, look.run[i].end - look.run[i].start, arg);
}

void pm_live_record_end(void) {
    if (lent)
        pm_stored_recall();
    else
        end_own();
}

// Its own ends with its process.
void pm_live_record_drop(void) {
    if (lent)
        pm_stored_recall();
}

int pm_live_record_fd(void) { return lent ? pm_stored_fd() : -1; }

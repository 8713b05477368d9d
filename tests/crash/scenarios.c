// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "scenarios.h"

#include <stdlib.h>
#include <unistd.h>

#include "blocks/age.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "pages/extent_resize.h"
#include "pages/extent_take.h"
#include "pages/frontier.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "program.h"
#include "record.h"
#include "roots/root_table.h"
#include "schedule.h"

// ---- allocation and free by size ----------------------------------------------------------------

// Small blocks in slabs of two kinds: with many blocks, and with a few. Slabs with a few blocks
// come and go.
static void small(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 64);
    for (unsigned round = 0; round < 6; round++) {
        program_steps(t, 60, 40, 32, 400);
        program_steps(t, 60, 60, 5000, 16384);
        program_steps(t, 60, 4, 5000, 16384);
        pm_trim();
    }
    program_drop_all(t);
    pm_trim();
    program_close();
}

// Slabs are filled, become nearly empty and morph: to smaller classes, to larger ones, and back
// once the last old block is gone.
static void morph(unsigned phase) {
    static const uint64_t size[] = {1000, 600, 3000, 250, 2000, 1000};
    setenv("PMALLOC_MORPH", "40", 1);
    program_start("", false);
    struct table *t = program_table(0, 160);
    for (unsigned round = 0; round < 5; round++) {
        program_fill_to(t, round % 2 ? 90 : 140, size[(round + phase) % 6]);
        program_fill_to(t, 14 + rnd(20), 40);
        pm_trim();
    }
    if (rnd(2)) {
        program_drop_all(t);
        pm_trim();
    }
    program_close();
}

// Slabs hold blocks of two classes for a long time. Old blocks go one at a time, and their space is
// reused at once.
static void morph_slowly(unsigned phase) {
    setenv("PMALLOC_MORPH", "60", 1);
    program_start("", false);
    struct table *t = program_table(0, 240);
    if (phase == 0) {
        program_fill_to(t, 200, 1000);
        program_fill_to(t, 70, 40);
        pm_trim();
    }
    for (unsigned i = 0; i < 240; i++) {
        uint64_t at = rnd(t->count);
        if (t->entry[at] && t->entry[at]->size >= 1000)
            program_drop(t, at);
        else if (!t->entry[at])
            program_put(t, at, 600 + rnd(16));
        if (rnd(3) == 0)
            pm_trim();
    }
    if (phase == 2)
        program_close();
}

static void large(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 32);
    for (unsigned round = 0; round < 5; round++) {
        program_steps(t, 40, 24, 16385, 300000);
        program_steps(t, 20, 20, 300000, 2 << 20);
        program_steps(t, 40, 2, 16385, 600000);
        record_clock_ms += 20000; // time for free space to go back to the file system
    }
    program_close();
}

// The heap outgrows its first data file and gets another one, in every phase that finds it small.
static void shards(unsigned phase) {
    setenv("PMALLOC_SHARD", "4M", 1);
    setenv("PMALLOC_LIMIT", "8M", 1); // so there are two at most
    program_start("", false);
    struct table *t = program_table(0, 64);
    for (unsigned round = 0; round < 3; round++) {
        program_fill_to(t, 34, 130000);
        program_steps(t, 40, 40, 32, 4000);
        program_fill_to(t, 8, 130000);
        record_clock_ms += 20000;
    }
    if (phase == 1)
        program_drop_all(t);
    program_close();
}

static void huge(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 8);
    for (unsigned round = 0; round < 4; round++) {
        program_steps(t, 14, 6, 2 << 20, 12 << 20);
        program_steps(t, 14, 1, 2 << 20, 5 << 20);
        pm_trim();
    }
    program_close();
}

// Huge blocks of a few lengths: most are handed out again with their entries. These end by age, for
// need, by trimming and at the close.
static void standing(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 6);
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 12; i++) {
            uint64_t at = rnd(3);
            program_drop(t, at);
            if (rnd(4))
                program_put(t, at, (2ull << 20) + (rnd(2) << 20));
        }
        switch (rnd(3)) {
        case 0:
            record_clock_ms += 1100;
            program_steps(t, 20, 6, 16385, 40000);
            break;
        case 1:
            pm_trim();
            break;
        default: // longer than what stands
            program_drop_all(t);
            program_put(t, 3, 5 << 20);
            program_drop(t, 3);
        }
    }
    if (phase)
        program_close();
}

static void resize(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 12);
    static const uint64_t top[] = {20000, 60000, 200000, 900000, 5 << 20};
    for (unsigned i = 0; i < 120; i++) {
        program_step(t, 9, 40, top[rnd(5)]);
        program_resize(t, rnd(t->count), 40 + rnd(top[rnd(5)]));
    }
    program_drop_all(t);
    program_close();
}

// Large blocks that are freed and handed out again with their entries, which end by age, for need,
// by trimming and at the close; by turns some of them first.
static void cached(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 40), *big = program_table(1, 1);
    for (unsigned round = 0; round < 7; round++) {
        program_steps(t, 40, 30, 16385, 120000);
        program_steps(t, 30, 20, 300000, 2 << 20);
        program_steps(t, 40, round % 2 ? 2 : 16, 16385, 2 << 20);
        switch (rnd(3)) {
        case 0: // after two looks at the clock nothing of now is left
            for (unsigned i = 0; i < 3; i++) {
                record_clock_ms += 1100;
                program_steps(t, 70, 4, 16385, 40000);
            }
            break;
        case 1:
            pm_trim();
            break;
        default:
            program_put(big, 0, 20 << 20);
            program_drop(big, 0);
        }
    }
    if (phase)
        program_close();
}

// Slabs of which few blocks stay give back pages, by trimming or by age, and get them again.
static void holes(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 200);
    for (unsigned round = 0; round < 5; round++) {
        program_steps(t, 160, 160, 512, 6000);
        program_steps(t, 200, 8, 512, 6000);
        if (rnd(2))
            pm_trim();
        for (unsigned i = 0; i < 3; i++) {
            record_clock_ms += 6000;
            pm_age_all();
            program_steps(t, 10, 20, 512, 6000);
        }
    }
    if (phase)
        program_close();
}

// ---- the bookkeeping log ------------------------------------------------------------------------

// Each large block comes from the log and goes back to it.
static void without_caches(void) { setenv("PMALLOC_DECAY_MS", "0", 1); }

// Short-lived extents fill the log, so that it is compacted and dead chunks are dropped.
static void log_churn(unsigned phase) {
    (void)phase;
    without_caches();
    program_start("", false);
    struct table *t = program_table(0, 96);
    program_steps(t, 4500, 60, 16385, 40000);
    program_steps(t, 3500, 2, 16385, 40000); // so few stay in use that whole chunks die
    program_close();
}

// Compactions that fill their new chunks exactly. The next compaction reuses the chunks that this
// one has replaced.
static void log_exact(unsigned phase) {
    (void)phase;
    without_caches();
    program_start("", false);
    struct table *t = program_table(0, 128);
    uint64_t spare = PM_CHUNK_ENTRIES + rnd(2) - pm_extent_stats().active;
    for (uint64_t at = 0; at < spare; at++)
        program_put(t, at, 16385);
    for (unsigned i = 0; i < 2400; i++) {
        uint64_t at = rnd(spare);
        program_drop(t, at);
        program_put(t, at, 16385 + rnd(8000));
        record_clock_ms += rnd(40);
    }
}

// The log cannot grow for now: the file system is full, or the log's part of a fixed medium.
static void fill_log(bool full) {
    struct pm_file *log = &pm_heap.shard[0].log;
    record_full_log = full ? UINT32_MAX : 0;
    if (log->length)
        log->room = full ? log->size : log->reach;
}

// The log has no room for another chunk. Entries must be ended without tombstones.
static void log_full(unsigned phase) {
    (void)phase;
    without_caches();
    program_start("", false);
    struct table *t = program_table(0, 32);
    for (unsigned round = 0; round < 5; round++) {
        fill_log(false);
        program_steps(t, 400, 24, 16385, 40000);
        fill_log(true);
        program_steps(t, 500, 16, 16385, 40000);
        program_drop_all(t);
    }
    fill_log(false);
    program_steps(t, 50, 24, 16385, 40000);
    program_close();
}

// ---- threads ------------------------------------------------------------------------------------

static void worker(void *arg) {
    struct table *t = arg;
    program_steps(t, 40, 8, 32, 400);
    program_steps(t, 20, 8, 5000, 16384);
    program_steps(t, 20, 8, 16385, 70000);
    for (unsigned i = 0; i < 10; i++)
        program_resize(t, rnd(t->count), 40 + rnd(60000));
    program_steps(t, 30, 2, 32, 40000);
}

static void threads_run(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t[3];
    for (unsigned i = 0; i < 3; i++)
        t[i] = program_table(i, 12);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 2 + round % 2; i++)
            schedule_start(worker, t[i]);
        schedule_join();
    }
    program_close();
}

// ---- openings that are interrupted --------------------------------------------------------------

static void come_and_go(void) {
    void *block[4];
    for (unsigned i = 0; i < 4; i++)
        block[i] = pm_malloc(16385 + rnd(60000));
    for (unsigned i = 0; i < 4; i++)
        pm_free(block[i]);
}

// Constructors allocate pages that a killed process was freeing. At that time the record of the
// program has not been written yet. It drains, and would hide a missing drain of the log.
static void early(unsigned phase) {
    without_caches();
    program_constructors = come_and_go;
    program_start("", false);
    struct table *t = program_table(0, 8);
    program_steps(t, 40, 5, 16385, 80000);
    if (phase == 3)
        program_close();
}

// Most entries of the log are dead. Recovery erases them in one step and compacts what is left.
static void swept(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 24);
    program_steps(t, 30, 14, 32, 40000);
    if (phase != 1) {
        struct table *gone = program_new_table(24); // no root ever names it
        for (unsigned i = 0; i < 23 * 24; i++)
            if (gone->entry[i % 24])
                program_drop(gone, i % 24);
            else
                program_put(gone, i % 24, i % 5 ? 16385 : 32 + rnd(3000));
    }
    program_steps(t, 30, 14, 32, 40000);
    if (phase == 2)
        program_close();
}

// A little of everything, for the scenarios that interrupt recovery.
static void mixed(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 24);
    for (unsigned i = 0; i < (phase ? 12u : 60u); i++) {
        program_step(t, 14, 32, rnd(2) ? 1000 : 16384);
        program_step(t, 14, 16385, 100000);
        program_resize(t, rnd(t->count), 20000 + rnd(80000));
        if (rnd(16) == 0)
            pm_trim();
    }
    if (rnd(4) == 0) {
        struct table *old = t;
        program_set_root(0, program_new_table(24));
        program_free_table(old);
    }
    program_close();
}

// The log was longer once, while the heap was larger. So it has many free chunks when it is
// compacted, and the next compaction does not overwrite the chunks that an interrupted one left.
static void log_then(unsigned phase) {
    without_caches();
    program_start("", false);
    struct table *t = program_table(0, 96), *big = program_table(1, 1);
    if (phase == 0) {
        program_steps(t, 400, 60, 16385, 40000);
        program_put(big, 0, 12 << 20);
        program_steps(t, 4800, 60, 16385, 40000);
        program_drop(big, 0);
        pm_trim();
    }
    program_steps(t, phase ? 250 : 9000, 60, 16385, 40000);
    if (phase)
        program_close();
}

const struct scenario scenarios[] = {
    {.name = "small", .what = "small blocks; slabs made and released", 1, .run = small},
    {.name = "morph", .what = "slabs that take up blocks of another size", 1, .run = morph},
    {.name = "large",
     .what = "large blocks; the heap grows, shrinks, punches holes",
     1,
     .run = large},
    {.name = "cached",
     .what = "large blocks handed out again with their entries",
     2,
     .run = cached},
    {.name = "holes",
     .what = "kills while slabs give back pages without a block",
     3,
     2,
     .kill = true,
     .run = holes},
    {.name = "huge", .what = "blocks over 2 MiB", 1, .run = huge},
    {.name = "standing",
     .what = "huge blocks handed out again with their entries",
     2,
     .run = standing},
    {.name = "shards", .what = "a second data file", 3, 2, .place = DIRECTORY, .run = shards},
    {.name = "resize", .what = "realloc, in place and not", 1, .run = resize},
    {.name = "log", .what = "dead chunks dropped, the log compacted", 1, .run = log_churn},
    {.name = "logexact", .what = "compactions into exactly full chunks", 1, .run = log_exact},
    {.name = "logfull", .what = "no room for the log to grow", 1, .run = log_full},
    {.name = "threads",
     .what = "threads that start and end, under a seeded scheduler",
     1,
     .run = threads_run},
    {.name = "slots",
     .what = "root slots set, replaced, removed; no roots",
     4,
     .run = scenario_slots},
    {.name = "capture",
     .what = "captured roots registered and removed",
     4,
     .run = scenario_capture},
    {.name = "late", .what = "a late root, captured and restored", 4, .run = scenario_late},
    {.name = "publish", .what = "1 to 16 stores at once", 3, 1, .run = scenario_publish},
    {.name = "publishers", .what = "the same by threads", 2, 1, .run = scenario_publishers},
    {.name = "recoverpub", .what = "recovery of a publish", 4, 3, .run = scenario_publish},
    {.name = "killedpub", .what = "kills within it", 4, 3, .kill = true, .run = scenario_publish},
    {.name = "heirpub", .what = "stores after them", 4, 3, .kill = true, .run = scenario_heir},
    {.name = "far", .what = "frees on another node", 3, 2, .place = DIRECTORY, .run = scenario_far},
    {.name = "killedfar",
     .what = "kills",
     4,
     3,
     .kill = true,
     .place = DIRECTORY,
     .run = scenario_far},
    {.name = "farthreads",
     .what = "the same by threads",
     1,
     .place = DIRECTORY,
     .run = scenario_far_threads},
    {.name = "create", .what = "a new heap", 1, .run = scenario_create},
    {.name = "removed",
     .what = "a heap removed, and made anew",
     2,
     1,
     .place = DIRECTORY,
     .run = scenario_removed},
    {.name = "reopen",
     .what = "clean closes; every other run with COLLECT=crash",
     5,
     .run = scenario_reopen},
    {.name = "copied", .what = "clean heaps copied", 5, .run = scenario_copied},
    {.name = "emptied", .what = "a heap without roots", 3, .run = scenario_emptied},
    {.name = "swept",
     .what = "recovery of a log that is mostly dead, interrupted twice",
     4,
     3,
     .late = true,
     .run = swept},
    {.name = "recover", .what = "recovery, interrupted twice", 3, 2, .run = mixed},
    {.name = "later", .what = "starts that collect nothing", 3, 2, .later = true, .run = mixed},
    {.name = "recovermorph",
     .what = "recovery of slabs of two sizes, interrupted twice",
     3,
     2,
     .run = morph},
    {.name = "killedmorph",
     .what = "kills during a morph, then power failures",
     4,
     3,
     .kill = true,
     .run = morph},
    {.name = "killedsync",
     .what = "kills while old blocks leave morphed slabs",
     3,
     2,
     .late = true,
     .kill = true,
     .run = morph_slowly},
    {.name = "killed",
     .what = "kills between store and flush, then power failures",
     4,
     3,
     .kill = true,
     .run = mixed},
    {.name = "early", .what = "kills; allocation before main", 4, 3, .kill = true, .run = early},
    {.name = "killedcap",
     .what = "kills between store and flush, with captured roots",
     5,
     4,
     .kill = true,
     .run = scenario_capture},
    {.name = "killedlate", .what = "kills", 4, 3, .kill = true, .run = scenario_late},
    {.name = "unrooted",
     .what = "kills while the last root is removed or set",
     3,
     2,
     .kill = true,
     .run = scenario_unrooted},
    {.name = "recoverlog",
     .what = "recovery of a log during compaction, interrupted twice",
     3,
     2,
     .late = true,
     .run = log_then},
    {.name = "recovercap",
     .what = "opening with captured roots, interrupted",
     5,
     1,
     .run = scenario_capture},
    {.name = "remade", .what = "--make", 4, 3, .place = MEDIUM, .run = scenario_remade},
    {.name = "from", .what = "--from", 5, 3, .late = true, .place = MEDIUM, .run = scenario_from},
    {.name = "grown", .what = "--grow", 4, 3, .place = MEDIUM, .run = scenario_grown},
    {.name = "full", .what = "no space, no memory", 3, 2, .place = MEDIUM, .run = scenario_full},
    {.name = "pair", .what = "two media", 3, 2, .place = PAIR, .run = scenario_pair},
    {.name = "killedpair",
     .what = "kills",
     4,
     3,
     .kill = true,
     .place = PAIR,
     .run = scenario_pair},
};
const unsigned scenario_count = sizeof scenarios / sizeof scenarios[0];

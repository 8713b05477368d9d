// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "scenarios.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "extent.h"
#include "heap.h"
#include "pmalloc.h"
#include "program.h"
#include "record.h"
#include "roots.h"
#include "schedule.h"

static void steps(struct table *t, unsigned count, uint64_t want, uint64_t from, uint64_t to) {
    while (count--)
        program_step(t, want, from, to);
}

// ---- allocation and free by size ---------------------------------------------------------------------

// Slabs of two kinds: of many blocks, and of a few, which come and go.
static void small(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 64);
    for (unsigned round = 0; round < 6; round++) {
        steps(t, 60, 40, 32, 400);
        steps(t, 60, 60, 5000, 16384);
        steps(t, 60, 4, 5000, 16384);
        pm_trim();
    }
    program_drop_all(t);
    pm_trim();
    program_close();
}

// Puts objects of about one size until `want` entries are in use, or drops until that few are. What the thread's cache
// holds goes back now and then, so that slabs see what was freed.
static void fill_to(struct table *t, uint64_t want, uint64_t size) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < t->count; i++)
        used += t->entry[i] != NULL;
    for (uint64_t at; used != want; record_clock_ms += 3) {
        at = rnd(t->count);
        if (used < want && !t->entry[at]) {
            program_put(t, at, size + rnd(16));
            used++;
        } else if (t->entry[at] && (used > want || rnd(6) == 0)) {
            program_drop(t, at);
            used--;
        }
        if (rnd(12) == 0)
            pm_trim();
    }
}

// Slabs that are filled, run nearly empty and morph: to smaller blocks and to larger ones, and back when the last old
// one is gone.
static void morph(unsigned phase) {
    static const uint64_t size[] = {1000, 600, 3000, 250, 2000, 1000};
    setenv("PMALLOC_MORPH", "40", 1);
    program_start("", false);
    struct table *t = program_table(0, 160);
    for (unsigned round = 0; round < 5; round++) {
        fill_to(t, round % 2 ? 90 : 140, size[(round + phase) % 6]);
        fill_to(t, 14 + rnd(20), 40);
        pm_trim();
    }
    if (rnd(2)) {
        program_drop_all(t);
        pm_trim();
    }
    program_close();
}

// Slabs of two sizes for long: old blocks go one at a time, and what they leave is taken up at once.
static void morph_slowly(unsigned phase) {
    setenv("PMALLOC_MORPH", "60", 1);
    program_start("", false);
    struct table *t = program_table(0, 240);
    if (phase == 0) {
        fill_to(t, 200, 1000);
        fill_to(t, 70, 40);
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
        steps(t, 40, 24, 16385, 300000);
        steps(t, 20, 20, 300000, 2 << 20);
        steps(t, 40, 2, 16385, 600000);
        record_clock_ms += 20000; // what is free goes back to the file system
    }
    program_close();
}

static void huge(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 8);
    for (unsigned round = 0; round < 4; round++) {
        steps(t, 14, 6, 2 << 20, 12 << 20);
        steps(t, 14, 1, 2 << 20, 5 << 20);
        pm_trim();
    }
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

// ---- the bookkeeping log -----------------------------------------------------------------------------

// So many short-lived extents that the log is collected, first fast, then slowly.
static void log_churn(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 96);
    steps(t, 4500, 60, 16385, 40000);
    steps(t, 3500, 2, 16385, 40000); // so few live that whole chunks die
    program_close();
}

// Slow collections that fill their chunks exactly, so that the next one comes from the list just left.
static void log_exact(unsigned phase) {
    (void)phase;
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

// No room for another chunk: tombstones must do without.
static void log_full(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 32);
    for (unsigned round = 0; round < 5; round++) {
        record_full_log = 0;
        steps(t, 400, 24, 16385, 40000);
        record_full_log = UINT32_MAX; // until the chunks that there are have filled up, and beyond
        steps(t, 500, 16, 16385, 40000);
        program_drop_all(t);
    }
    record_full_log = 0;
    steps(t, 50, 24, 16385, 40000);
    program_close();
}

// ---- threads -----------------------------------------------------------------------------------------

static void worker(void *arg) {
    struct table *t = arg;
    steps(t, 40, 8, 32, 400);
    steps(t, 20, 8, 5000, 16384);
    steps(t, 20, 8, 16385, 70000);
    for (unsigned i = 0; i < 10; i++)
        program_resize(t, rnd(t->count), 40 + rnd(60000));
    steps(t, 30, 2, 32, 40000);
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

// ---- roots -------------------------------------------------------------------------------------------

static void slots(unsigned phase) {
    program_start("", false);
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++) {
            struct table *old = pmalloc_get_root(slot);
            struct table *fresh = rnd(4) ? program_new_table(8) : NULL;
            if (fresh)
                steps(fresh, 12, 6, 32, 40000);
            program_set_root(slot, fresh);
            if (old)
                program_free_table(old);
        }
    }
    if (phase == 1) // a heap without roots is emptied
        for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++)
            program_set_root(slot, NULL);
    if (phase != 2)
        program_close();
}

static void fill_captured(struct captured *c) {
    if (!c->table) {
        struct table *t = program_new_table(8);
        data_store_u64(&c->table, (uint64_t)(uintptr_t)t);
    }
    steps(c->table, 20, 6, 32, 40000);
}

static void set_captured(unsigned which, struct captured *c) {
    uint64_t value = rnd(1u << 30);
    data_store_u64(&c->value, value);
    world->expect.captured[which] = value;
}

static void drop_captured(unsigned which, const char *name) {
    struct pm_error err;
    world->expect.may_lack[which] = true;
    if (pm_roots_drop(name, &err) != PM_OK)
        fprintf(stderr, "crash: %s\n", err.text), _exit(4);
    world->expect.may_have[which] = false;
}

// Registered, with another one beside it, removed, registered again.
static void capture(unsigned phase) {
    static const char *const roots[] = {"crash_root_a", "crash_root_b", "", "crash_root_a"};
    program_start(roots[phase % 4], false);
    if (world->expect.may_have[0]) {
        set_captured(0, &crash_root_a);
        fill_captured(&crash_root_a);
    }
    if (world->expect.may_have[1]) {
        set_captured(1, &crash_root_b);
        fill_captured(&crash_root_b);
    }
    if (phase == 2) {
        if (world->expect.may_have[1])
            drop_captured(1, "crash_root_b");
        if (world->expect.may_have[0])
            drop_captured(0, "crash_root_a");
        return;
    }
    program_close();
}

// ---- opening and closing -----------------------------------------------------------------------------

static void create(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 16);
    steps(t, 20, 12, 32, 30000);
    program_close();
}

static void reopen(unsigned phase) {
    program_start("", phase % 2);
    struct table *t = program_table(0, 32);
    steps(t, 60, 20, 32, 3000);
    steps(t, 20, 20, 16385, 100000);
    if (phase < 4)
        program_close();
}

// The last root is taken away and comes back: a heap may only be emptied once that is durable.
static void unrooted(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 4);
    steps(t, 4, 3, 32, 40000);
    for (unsigned i = 0; i < 24; i++)
        program_set_root(0, i % 2 ? t : NULL);
    if (phase == 2)
        program_close();
}

// A heap that nothing can reach is emptied even when its log cannot be read.
static void emptied(unsigned phase) {
    char path[192];
    static const uint64_t nonsense = 0x6e6f6e73656e7365;
    snprintf(path, sizeof path, "%s/heap/booklog.0", world->root);
    int fd = phase == 1 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && pwrite(fd, &nonsense, sizeof nonsense, 0) == (ssize_t)sizeof nonsense)
        close(fd);
    world->expect.spoilt = phase == 1;
    program_start("", false);
    struct table *t = program_table(0, 8);
    steps(t, 20, 6, 32, 40000);
    program_set_root(0, NULL);
    program_free_table(t);
    if (phase == 2)
        program_close();
}

// Everything in one, for what comes after a failure.
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

// A log that was longer once, with a larger heap: it has free chunks in plenty when it is collected again, so what
// an interrupted collection left is not what the next one uses.
static void log_then(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 96), *big = program_table(1, 1);
    if (phase == 0) {
        steps(t, 400, 60, 16385, 40000);
        program_put(big, 0, 12 << 20);
        steps(t, 4800, 60, 16385, 40000);
        program_drop(big, 0);
        pm_trim();
    }
    steps(t, phase ? 250 : 9000, 60, 16385, 40000);
    if (phase)
        program_close();
}

const struct scenario scenarios[] = {
    {.name = "small", .what = "small blocks; slabs made and given back", 1, .run = small},
    {.name = "morph", .what = "slabs that take up blocks of another size", 1, .run = morph},
    {.name = "large",
     .what = "large blocks; the heap grows, shrinks, punches holes",
     1,
     .run = large},
    {.name = "huge", .what = "blocks over 2 MiB", 1, .run = huge},
    {.name = "resize", .what = "realloc, in place and not", 1, .run = resize},
    {.name = "log",
     .what = "fast and slow collection of the log, with the flip",
     1,
     .run = log_churn},
    {.name = "logexact", .what = "slow collections into exactly full chunks", 1, .run = log_exact},
    {.name = "logfull", .what = "no room for the log to grow", 1, .run = log_full},
    {.name = "threads",
     .what = "threads born and ended, by a seeded scheduler",
     1,
     .run = threads_run},
    {.name = "slots", .what = "root slots set, replaced, removed; no roots", 4, .run = slots},
    {.name = "capture", .what = "captured roots registered, replaced, removed", 4, .run = capture},
    {.name = "create", .what = "a new heap", 1, .run = create},
    {.name = "reopen", .what = "clean closes; COLLECT=crash by turns", 5, .run = reopen},
    {.name = "emptied", .what = "a heap without roots, whatever its log", 3, .run = emptied},
    {.name = "recover", .what = "recovery, interrupted twice", 3, 2, .run = mixed},
    {.name = "recovermorph",
     .what = "recovery of slabs of two sizes, interrupted twice",
     3,
     2,
     .run = morph},
    {.name = "killedmorph",
     .what = "kills amid a morph, then power failures",
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
     .what = "kills amid store and flush, then power failures",
     4,
     3,
     .kill = true,
     .run = mixed},
    {.name = "killedcap",
     .what = "the same with captured roots",
     5,
     4,
     .kill = true,
     .run = capture},
    {.name = "unrooted",
     .what = "kills while the last root goes or comes",
     3,
     2,
     .kill = true,
     .run = unrooted},
    {.name = "recoverlog",
     .what = "recovery of a log in collection, interrupted twice",
     3,
     2,
     .late = true,
     .run = log_then},
    {.name = "recovercap",
     .what = "opening with captured roots, interrupted",
     5,
     1,
     .run = capture},
};
const unsigned scenario_count = sizeof scenarios / sizeof scenarios[0];

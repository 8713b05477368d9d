// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "leaks.h"

#include <stdatomic.h>

#include "base/cancel.h"
#include "base/options.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "leaks_marker.h"
#include "live/leaks_door.h"
#include "live/live_record.h"
#include "stacks.h"
#include "threads/hold.h"
#include "world.h"

// By site, where stacks are recorded.
static struct pm_leak_row *site;

static void add(void *block, size_t bytes, void *arg) {
    const struct pm_leaks_found *found = arg;
    pm_leaks_add(found->leaks, block, bytes);
    if (!found->site)
        return;
    struct pm_leak_row *row = &found->site[pm_stacks_site(block)];
    row->blocks++;
    row->bytes += bytes;
    row->example = block;
}

int pm_leaks_mark(struct pm_leaks_found *found, int roots(struct pm_error *),
                  struct pm_error *err) {
    int status = pm_live_begin(found->markers, err);
    if (status != PM_OK)
        return status;
    status = roots(err);
    if (status == PM_OK) {
        pm_live_mark();
        *found->in_use = pm_live_unreached(add, found);
    }
    pm_live_end();
    return status;
}

int pm_leaks_begin_beside(struct pm_leaks_found *found, int roots(struct pm_error *),
                          struct pm_error *err) {
    int status = pm_live_begin(found->markers, err);
    if (status == PM_OK && (status = roots(err)) != PM_OK)
        pm_live_end();
    return status;
}

// A look that finds fewer pages is the last one: they are marked while the program is held. So is
// what a program stores to faster than it can be marked.
#define FEW 1024u
#define ROUNDS 4u

int pm_leaks_look(unsigned round, bool *last, struct pm_error *err) {
    int status = pm_live_again(err);
    uint64_t pages = status == PM_OK ? pm_live_record_look() : 0;
    *last = pages <= FEW || round >= ROUNDS;
    if (pages == UINT64_MAX)
        status = pm_fail(err, PM_OPERATIONAL, "the kernel's record of stores cannot be read");
    return status;
}

int pm_leaks_end_beside(struct pm_leaks_found *found, int roots(struct pm_error *),
                        struct pm_error *err) {
    int status = roots(err);
    if (status == PM_OK) {
        pm_marker_mark_stored();
        *found->in_use = pm_live_noted(add, found);
    }
    pm_live_end();
    return status;
}

uint64_t pm_leaks_sites(struct pm_leak_row *row,
                        void each(uint32_t site, const struct pm_leak_row *row, void *arg),
                        void *arg) {
    uint64_t rest = 0;
    for (unsigned n = 0; n < PM_LEAK_SITES; n++) {
        uint32_t most = 0;
        for (uint32_t i = 1; i < PM_STACKS; i++)
            if (row[i].bytes > row[most].bytes)
                most = i;
        if (!row[most].blocks)
            return 0;
        each(most, &row[most], arg);
        row[most] = (struct pm_leak_row){0};
    }
    for (uint32_t i = 0; i < PM_STACKS; i++)
        rest += row[i].bytes;
    return rest;
}

static void root(const void *at, size_t len, void *unused) {
    (void)unused;
    pm_live_root(at, len);
}

static int all_roots(struct pm_error *err) { return pm_world_roots(root, NULL, err); }

static int mark_and_count(void *found, struct pm_error *err) {
    return pm_leaks_mark(found, all_roots, err);
}

int pm_leaks_find(struct pm_leaks *leaks, struct pm_live_sum *in_use, struct pm_error *err) {
    struct pm_leaks_found found = {leaks, in_use, 0, site};
    *leaks = (struct pm_leaks){0};
    pm_marker_end();
    return pm_world_hold(mark_and_count, &found, err);
}

// ---- the report ---------------------------------------------------------------------------------

int pm_leaks_begin(struct pm_error *err) {
    if (pm_options.leaks.number == PM_LEAKS_OFF)
        return PM_OK;
    pm_own_note_library();
    if (pm_hold_prepare())
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "PMALLOC_LEAKS: no memory to hold threads with");
}

static void say_line(const char *line) { pm_event(PM_EV_LEAKS, "leaks: %s", line); }

static void say_site(uint32_t i, const struct pm_leak_row *row, void *unused) {
    (void)unused;
    pm_event(PM_EV_LEAKS, "leaks: %lu bytes in %lu blocks, one at %p, allocated by%s",
             (unsigned long)row->bytes, (unsigned long)row->blocks, row->example,
             i ? ":" : " what is not on record");
    pm_stacks_say(i);
}

static void say_sites(void) {
    uint64_t rest = pm_leaks_sites(site, say_site, NULL);
    if (rest)
        pm_event(PM_EV_LEAKS, "leaks: %lu bytes more, allocated in other places",
                 (unsigned long)rest);
}

static void report(void) {
    static struct pm_leaks leaks;
    struct pm_live_sum in_use;
    struct pm_error err;
    if (pm_leaks_find(&leaks, &in_use, &err) != PM_OK) {
        pm_event(PM_EV_LEAKS, "leaks: no report: %s", err.text);
        return;
    }
    pm_event(PM_EV_LEAKS, "leaks: nothing reaches %lu of %lu blocks, %lu of %lu bytes%s",
             (unsigned long)leaks.sum.blocks, (unsigned long)in_use.blocks,
             (unsigned long)leaks.sum.bytes, (unsigned long)in_use.bytes,
             leaks.sum.blocks ? ":" : "");
    if (leaks.sum.blocks)
        pm_leaks_lines(&leaks, say_line);
    if (site)
        say_sites();
}

void pm_leaks_report(void) {
    static _Atomic bool said;
    if (pm_options.leaks.number == PM_LEAKS_OFF || pm_nested() || atomic_exchange(&said, true))
        return;
    struct pm_cancel held = pm_cancel_hold();
    site = pm_stacks_on ? pm_os_reserve(PM_STACKS * sizeof *site) : NULL;
    pm_inside_leave(); // as in pm_stats_say()
    report();
    pm_inside_enter();
    pm_cancel_release(held);
}

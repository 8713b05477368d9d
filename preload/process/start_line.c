// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "start_line.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "addresses.h"
#include "base/options.h"
#include "media/backing/work_copy.h"
#include "media/commit/commit.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent_take.h"
#include "recovery/beside.h"
#include "roots/parts.h"
#include "roots/root_media.h"
#include "state/removed.h"

// Appends as far as there is room. The rest is left out.
__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...) {
    size_t len = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

static void add_root(char *text, size_t size, const struct pm_spec *spec, bool waits) {
    const char *between = *text ? ", " : "";
    add(text, size, "%s%.96s%s", between, spec->object, *spec->object ? ":" : "");
    if (spec->kind == PM_ROOT_SYMBOL)
        add(text, size, "%.160s", spec->name);
    else if (spec->kind == PM_ROOT_RANGE)
        add(text, size, "%.160s+0x%lx/%lu", spec->name, (unsigned long)spec->offset,
            (unsigned long)spec->length);
    else
        add(text, size, "*");
    if (waits)
        add(text, size, spec->when == PM_ROOT_AT_CALL ? " at its call" : " when it is idle");
}

static bool is_on_record(const struct pm_part *part, const struct pm_root_table *t) {
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++)
        if (pm_part_of(&t->root[i]) == part)
            return true;
    return false;
}

// Returns how many there are, those included that wait and are not in the heap yet.
static unsigned name_roots(char *text, size_t size) {
    const struct pm_root_table *t = &pm_heap.super->roots[pm_heap_root_epoch() & 1];
    unsigned slots = 0, count = pm_heap_root_count();
    struct pm_spec spec;
    *text = '\0';
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++)
        if (t->root[i].part == 0) {
            pm_root_spec(&t->root[i], &spec);
            add_root(text, size, &spec, t->root[i].waits);
        }
    for (unsigned i = 0; i < pm_part_count; i++) {
        const struct pm_part *part = &pm_parts[i];
        if (part->number == 0 && pm_part_waits(part) && !is_on_record(part, t)) {
            add_root(text, size, &part->spec, true);
            count++;
        }
    }
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        slots += pm_heap_slot(i) != 0;
    if (slots)
        add(text, size, "%s%u slots", *text ? ", " : "", slots);
    return count;
}

// Which instant the heap has gone back to, and what a commit of this run costs.
static void add_commits(char *text, size_t size) {
    const struct pm_commit_cost *cost = &pm_commit_last;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
                 (double)pm_journal_opened.commit.time / 1e9;
    if (pm_journal_opened.is == PM_JOURNAL_APPLIED)
        add(text, size, "; as of a commit %.3f s before", age > 0 ? age : 0);
    else if (pm_journal_opened.is == PM_JOURNAL_TORN)
        add(text, size, "; as of the commit before one that was cut short");
    if (pm_heap_is_journaled() && pm_work_wanted)
        add(text, size, "; on a copy in memory");
    if (pm_heap_is_journaled())
        add(text, size, "; first commit: %lu pages, %.1f ms", (unsigned long)cost->pages,
            (double)cost->held_us / 1000);
}

// What a kill leaves, in plain words. In commit mode the row says it.
static void add_guarantee(char *text, size_t size) {
    struct stat st;
    if (!pm_heap_is_journaled())
        add(text, size, "; a kill keeps each store before it, so an operation may be half done");
    else if (strncmp(pm_options.commit.text, "output", strlen("output")) == 0 &&
             fstat(STDOUT_FILENO, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 1)
        add(text, size, "; nobody reads standard output, so it makes no commit");
}

static void add_addresses(char *text, size_t size) {
    add(text, size, "; addresses %s", pm_addresses_text());
}

static void say_borrowed(const struct pm_recovery *recovery) {
    char roots[300];
    unsigned count = name_roots(roots, sizeof roots);
    pm_event(
        PM_EV_STARTED,
        "heap %.300s, private: nothing that this process stores is kept; roots: %u (%s); %s: "
        "%lu bytes of slabs and extents, shared until stored to; opened in %.3f s; addresses %s",
        pm_heap.dir, count, *roots ? roots : "none",
        recovery->was_clean ? "clean" : "as a kill has left it",
        (unsigned long)(pm_extent_stats().active_pages << PM_PAGE_SHIFT), recovery->seconds,
        pm_addresses_text());
}

void pm_start_line(const struct pm_chosen *chosen, const struct pm_recovery *recovery) {
    if (pm_heap_state() == PM_HEAP_BORROWED) {
        say_borrowed(recovery);
        return;
    }
    if (!pm_heap_on_media()) {
        pm_event(PM_EV_STARTED, "volatile memory: nothing is kept: %s", chosen->why);
        return;
    }
    char roots[300], result[520];
    unsigned count = name_roots(roots, sizeof roots);
    if (pm_heap.created)
        snprintf(result, sizeof result, "new");
    else if (!recovery->roots)
        snprintf(result, sizeof result, "emptied, because no root reached what was in it");
    else if (recovery->uncollected)
        snprintf(result, sizeof result,
                 "%s: all that was allocated is kept, %lu bytes of slabs and extents; "
                 "opened in %.3f s",
                 pm_beside_is_on() ? "collecting beside the program" : "not collected",
                 (unsigned long)(pm_extent_stats().active_pages << PM_PAGE_SHIFT),
                 recovery->seconds);
    else
        snprintf(result, sizeof result,
                 "%s: %lu objects, %lu bytes live, %lu bytes reclaimed in %.3f s",
                 recovery->was_clean ? "clean" : "recovered", (unsigned long)recovery->live_objects,
                 (unsigned long)recovery->live_bytes, (unsigned long)recovery->reclaimed_bytes,
                 recovery->seconds);
    if (recovery->cleared)
        add(result, sizeof result, "; %lu words that led into what is gone are NULL",
            (unsigned long)recovery->cleared);
    bool commits = pm_heap_is_journaled();
    const char *row =
        pm_heap.nameless ? "ends with the process unless it gets a root" : pm_persist_row();
    add_commits(result, sizeof result);
    add_guarantee(result, sizeof result);
    add_addresses(result, sizeof result);
    pm_event(PM_EV_STARTED, "heap %.300s (%s%s%.20s); roots: %u (%s); %s", pm_heap.dir, row,
             commits ? "; commits: " : "", commits ? pm_options.commit.text : "", count,
             *roots ? roots : "none", result);
    const char *removed_by = pm_heap.nameless ? NULL : pm_removed_by(pm_heap.dir);
    if (removed_by)
        pm_event(PM_EV_HEAP_MAY_GO, "heap %.300s: %s; see docs/operations.md", pm_heap.dir,
                 removed_by);
    if (recovery->reached_before)
        pm_event(
            PM_EV_REACHED_LESS,
            "of %lu bytes that the last recovery had reached, half is not reached any more: if "
            "the program has not freed it, see docs/pointers.md",
            (unsigned long)recovery->reached_before);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "keep_free.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "base/mappings.h"
#include "roots/objects_record.h"
#include "verdict.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define PIECES (2 * PM_OBJECTS_MOST)

// What is filled.
static struct { uint64_t from, to; } piece[PIECES];
static unsigned pieces;

static bool fill(uint64_t from, uint64_t to) {
    void *at = (void *)(uintptr_t)from;
    if (from >= to || pieces == PIECES ||
        mmap(at, to - from, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at)
        return false;
    piece[pieces].from = from;
    piece[pieces++].to = to;
    return true;
}

static void see_access(uint64_t from, uint64_t to, int access, void *used) {
    (void)from, (void)to;
    *(bool *)used |= access != PROT_NONE;
}

// A program may have mapped something over it, at an address of its own choice.
static void empty(unsigned i) {
    bool used = false;
    if (pm_mappings_each(piece[i].from, piece[i].to, see_access, &used) && !used)
        munmap((void *)(uintptr_t)piece[i].from, piece[i].to - piece[i].from);
    piece[i] = piece[--pieces];
}

static bool overlaps(unsigned i, const struct pm_objects_entry *e) {
    return piece[i].from < e->end && e->start < piece[i].to;
}

// Places of several libraries may overlap, in several runs: what is of others only stays.
static void cut(unsigned i, const struct pm_objects_entry *e) {
    uint64_t from = piece[i].from, to = piece[i].to;
    empty(i);
    fill(from, e->start);
    fill(e->end, to);
}

bool pm_place_give(const struct pm_objects_entry *e) {
    bool given = false;
    for (unsigned i = pieces; i--;)
        if (overlaps(i, e)) {
            cut(i, e);
            given = true;
        }
    return given;
}

static void see(uint64_t from, uint64_t to, int access, void *seen) {
    (void)access;
    fill(*(uint64_t *)seen, from);
    *(uint64_t *)seen = to;
}

static void keep_free(const struct pm_objects_entry *e) {
    uint64_t seen = e->start;
    for (unsigned i = 0; i < pieces; i++)
        if (piece[i].from <= e->start && e->end <= piece[i].to)
            return;
    if (fill(e->start, e->end))
        return;
    pm_mappings_each(e->start, e->end, see, &seen);
    fill(seen, e->end);
}

static bool is_waited_for(unsigned i, const struct pm_objects_entry *all, unsigned count,
                          const bool *waits) {
    for (unsigned k = 0; k < count; k++)
        if (waits[k] && overlaps(i, &all[k]))
            return true;
    return false;
}

bool pm_places_may_be_filled(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

static bool is_among(const struct pm_objects_entry *e, const struct pm_objects_entry *const *given,
                     unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (pm_record_overlap(e, given[i]))
            return true;
    return false;
}

void pm_places_keep_free_but(const struct pm_objects_entry *const *given, unsigned givens) {
    unsigned count;
    if (!pm_places_may_be_filled())
        return;
    pm_verdicts_moved();
    const bool *waits = pm_verdicts_kept();
    const struct pm_objects_entry *all = pm_record_entries(&count);
    for (unsigned i = pieces; i--;)
        if (!is_waited_for(i, all, count, waits))
            empty(i);
    for (unsigned i = 0; i < count; i++)
        if (waits[i] && !is_among(&all[i], given, givens))
            keep_free(&all[i]);
}

void pm_places_keep_free(void) { pm_places_keep_free_but(NULL, 0); }

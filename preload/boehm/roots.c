// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots that the program names. All memory outside the heap that it can store to is a root anyway
// (preload/process/world.h). So adding a root matters only for a piece of a collectable block, and
// removing one has no effect on other memory. Memory may be excluded.
#include "boehm.h"
#include "live/trace.h"
#include "settings.h"

#define RANGES 8192u

struct ranges {
    struct {
        uintptr_t from, to;
    } range[RANGES];
    unsigned count;
};
static struct ranges added, excluded;

static void add(struct ranges *r, void *from, void *to) {
    pm_gc_init();
    pm_gc_lock();
    bool full = r->count == RANGES;
    if (!full && from < to) {
        r->range[r->count].from = (uintptr_t)from;
        r->range[r->count++].to = (uintptr_t)to;
    }
    pm_gc_unlock();
    if (full)
        pm_gc_abort("more than 8192 ranges of roots, or exclusions from them, are not supported");
}

// ---- with the world held ------------------------------------------------------------------------

void pm_gc_each_root(void) {
    for (unsigned i = 0; i < added.count; i++)
        if (pm_in_range((void *)added.range[i].from))
            pm_trace_range((void *)added.range[i].from, added.range[i].to - added.range[i].from);
    if (GC_push_other_roots)
        GC_push_other_roots();
    pm_trace_all();
}

// Whether `at` is excluded. `end`: until where that holds, or until where it does not.
bool pm_gc_root_excluded(uintptr_t at, uintptr_t *end) {
    *end = UINTPTR_MAX;
    for (unsigned i = 0; i < excluded.count; i++) {
        uintptr_t from = excluded.range[i].from, to = excluded.range[i].to;
        if (at >= from && at < to) {
            *end = to;
            return true;
        }
        if (from > at && from < *end)
            *end = from;
    }
    return false;
}

// ---- names --------------------------------------------------------------------------------------

EXPORT void GC_add_roots(void *from, void *to) { add(&added, from, to); }
EXPORT void GC_exclude_static_roots(void *from, void *to) { add(&excluded, from, to); }
EXPORT void GC_clear_exclusion_table(void) { excluded.count = 0; }

EXPORT void GC_clear_roots(void) {
    pm_gc_lock();
    added.count = 0;
    pm_gc_unlock();
}

EXPORT void GC_remove_roots(void *from, void *to) {
    pm_gc_lock();
    for (unsigned i = 0; i < added.count;)
        if (added.range[i].from >= (uintptr_t)from && added.range[i].to <= (uintptr_t)to)
            added.range[i] = added.range[--added.count];
        else
            i++;
    pm_gc_unlock();
}

EXPORT int GC_is_tmp_root(void *p) {
    (void)p;
    return 0;
}
EXPORT void GC_register_has_static_roots_callback(void *callback) { (void)callback; }
EXPORT void GC_register_displacement(size_t offset) { (void)offset; } // all are valid
EXPORT void GC_debug_register_displacement(size_t offset) { (void)offset; }

// For GC_push_other_roots and mark procedures: the world is held.
EXPORT void GC_push_all(void *from, void *to) {
    pm_trace_range(from, (size_t)((char *)to - (char *)from));
}
EXPORT void GC_push_all_eager(void *from, void *to) { GC_push_all(from, to); }
EXPORT void GC_push_conditional(void *from, void *to, int all) {
    (void)all;
    GC_push_all(from, to);
}
EXPORT void GC_push_finalizer_structures(void) { pm_gc_finalizers_mark(); }
EXPORT void *GC_mark_and_push(void *p, void *entries, void *limit, void **source) {
    (void)limit;
    (void)source;
    pm_trace_pointer(p);
    return entries;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Kinds whose blocks the sweep asks about before it frees them (gc_disclaim.h), and blocks with a
// finalizer of their own, which are of such a kind: their first word leads to the closure, and the
// program gets the address of the second.
#include "boehm.h"
#include "live/trace.h"
#include "process/entry.h"
#include "settings.h"

struct closure {
    void (*proc)(void *block, void *data);
    void *data;
};

static unsigned finalized; // the kind; 0: there is none yet

// A block that was just handed out has no closure yet.
static int finalize(void *block) {
    const struct closure *c = *(struct closure **)block;
    if (c)
        c->proc((void **)block + 1, c->data);
    return 0;
}

EXPORT void GC_register_disclaim_proc(int kind, int (*proc)(void *), int mark_from_all) {
    pm_gc_init();
    if (kind < 0 || kind >= (int)PM_COL_KINDS)
        pm_gc_abort("GC_register_disclaim_proc: there is no such kind of objects");
    pm_gc_lock();
    if (!GC_find_leak) {
        pm_col_kinds[kind].disclaim = proc;
        pm_col_kinds[kind].holds = mark_from_all != 0;
    }
    pm_gc_unlock();
}

EXPORT void GC_init_finalized_malloc(void) {
    pm_gc_init();
    pm_gc_lock();
    if (!finalized) {
        finalized = pm_gc_new_kind(0, true, true);
        GC_register_disclaim_proc((int)finalized, finalize, 1);
    }
    pm_gc_unlock();
}

EXPORT void *GC_finalized_malloc(size_t size, const struct closure *c) {
    if (!finalized)
        pm_gc_abort("GC_finalized_malloc: GC_init_finalized_malloc() was not called");
    if (size > SIZE_MAX - sizeof(gc_word))
        return GC_oom_fn(size);
    const struct closure **block = pm_gc_alloc(size + sizeof(gc_word), finalized);
    if (!block)
        return NULL;
    *block = c;
    return block + 1;
}

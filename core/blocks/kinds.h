// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of other kinds than PM_KIND_CONSERVATIVE (media/kind_format.h). A slab has blocks of one
// kind. So each kind has arenas of its own, one for each NUMA node; they come after the arenas that
// threads join, and a thread never joins them:
//
//   | of threads | of recovered slabs | pointer-free, of node 0, 1 ... | pinned, of node 0, 1 ... |
//   | pinned and pointer-free, of node 0, 1 ... | held, of node 0, 1 ... |
//
// Held slabs (PMALLOC_COLLECT=api) are those that the heap had when it was opened, until
// pmalloc_collect(). Their freed blocks return to them, and nobody takes these. So a block of a
// held slab that has a tag is old, and the program has not freed it. Held extents are freed past
// the extent caches for the same reason.
//
// These arenas count in pm_arena_count only from the first such block on. So a program without any
// pays nothing for them.
#ifndef PM_KINDS_H
#define PM_KINDS_H

#include <stdint.h>

#include "base/nodes.h"
#include "media/kind_format.h"

// Groups of slabs that have arenas of their own; the last is the held one.
#define PM_KINDS_APART 4u

// The number of the first arena of a kind.
extern uint16_t pm_kinds_first_arena;

static inline enum pm_kind pm_kind_of_arena(unsigned arena) {
    static const uint8_t kind[PM_KINDS_APART] = {PM_KIND_POINTER_FREE, PM_KIND_PINNED,
                                                 PM_KIND_PINNED_POINTER_FREE, 0};
    return arena < pm_kinds_first_arena
               ? PM_KIND_CONSERVATIVE
               : (enum pm_kind)kind[(arena - pm_kinds_first_arena) / pm_nodes.count];
}
static inline unsigned pm_held_arena(unsigned node) {
    return pm_kinds_first_arena + (PM_KINDS_APART - 1) * pm_nodes.count + node;
}
static inline unsigned pm_kind_arena(enum pm_kind kind, unsigned node) {
    unsigned group = pm_kind_is_pinned(kind) ? 1 + !pm_kind_has_pointers(kind) : 0;
    return pm_kinds_first_arena + group * pm_nodes.count + node;
}

#endif

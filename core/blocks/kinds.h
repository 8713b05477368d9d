// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of other kinds than PM_KIND_CONSERVATIVE (media/kind_format.h). A slab has blocks of one
// kind. So each kind has arenas of its own, one for each NUMA node; they come after the arenas that
// threads join, and a thread never joins them:
//
//   | of threads | of recovered slabs | pointer-free, of node 0, 1 ... | pinned, of node 0, 1 ... |
//   | pinned and pointer-free, of node 0, 1 ... | held, of node 0, 1 ... |
//   | typed | typed, pointer-free | typed, pinned | typed, pinned and pointer-free |
//
// A bin of typed slabs has those of all types; types.h finds one of a type.
//
// Held slabs (PMALLOC_COLLECT=api) are those that the heap had when it was opened, until
// pmalloc_collect(). Their freed blocks return to them, and nobody takes these. So a block of a
// held slab that has a tag is old, and the program has not freed it. Held extents are freed past
// the extent caches for the same reason.
//
// These arenas count in pm_arena_count only from the first such block on, those of typed blocks
// from the first typed one on. So a program without any pays nothing for them.
#ifndef PM_KINDS_H
#define PM_KINDS_H

#include <stdint.h>

#include "base/nodes.h"
#include "media/kind_format.h"

// Groups of slabs that have arenas of their own; the last without types is the held one.
#define PM_KINDS_UNTYPED 4u
#define PM_KINDS_APART (2 * PM_KINDS_UNTYPED)

// The number of the first arena of a kind.
extern uint16_t pm_kinds_first_arena;

static inline enum pm_kind pm_kind_of_arena(unsigned arena) {
    static const uint8_t kind[PM_KINDS_APART] = {PM_KIND_POINTER_FREE,
                                                 PM_KIND_PINNED,
                                                 PM_KIND_PINNED_POINTER_FREE,
                                                 0,
                                                 PM_KIND_TYPED,
                                                 PM_KIND_TYPED | PM_KIND_POINTER_FREE,
                                                 PM_KIND_TYPED | PM_KIND_PINNED,
                                                 PM_KIND_ALL};
    return arena < pm_kinds_first_arena
               ? PM_KIND_CONSERVATIVE
               : (enum pm_kind)kind[(arena - pm_kinds_first_arena) / pm_nodes.count];
}
static inline unsigned pm_held_arena(unsigned node) {
    return pm_kinds_first_arena + (PM_KINDS_UNTYPED - 1) * pm_nodes.count + node;
}
static inline unsigned pm_kind_arena(enum pm_kind kind, unsigned node) {
    unsigned group = pm_kind_is_pinned(kind) ? 1 + !pm_kind_has_pointers(kind) : 0;
    if (pm_kind_is_typed(kind))
        group = PM_KINDS_UNTYPED + 2 * pm_kind_is_pinned(kind) + !pm_kind_has_pointers(kind);
    return pm_kinds_first_arena + group * pm_nodes.count + node;
}
// The end of the arenas that blocks of a kind need.
static inline unsigned pm_kind_arenas_end(enum pm_kind kind) {
    return pm_kinds_first_arena +
           (pm_kind_is_typed(kind) ? PM_KINDS_APART : PM_KINDS_UNTYPED) * pm_nodes.count;
}

#endif

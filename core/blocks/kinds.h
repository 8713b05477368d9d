// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of other kinds than PM_KIND_CONSERVATIVE (media/kind_format.h). A slab has blocks of one
// kind. So each kind has a group of arenas of its own, as many as malloc's blocks have: one for
// each of these, and in their order. A thread that has joined one of malloc's uses those at the
// same place in the other groups. Slabs and blocks never go from one group to another.
//
//   group 0   malloc's: those that threads join, then those of recovered slabs
//   group 1   pointer-free, the same
//   group 2   pinned
//   group 3   pinned and pointer-free
//   apart     held, of node 0, 1 ...
//             typed; typed and pointer-free; typed and pinned; all three: of node 0, 1 ... each
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

#include <stdbool.h>
#include <stdint.h>

#include "base/nodes.h"
#include "media/kind_format.h"

#define PM_ARENA_GROUPS 4u
#define PM_ARENAS_TYPED 4u // of each node
#define PM_ARENAS_APART (1 + PM_ARENAS_TYPED)

// The number of the first arena of a kind, and so how many arenas a group has.
extern uint16_t pm_kinds_first_arena;

static inline unsigned pm_arenas_at_most(void) {
    return PM_ARENA_GROUPS * pm_kinds_first_arena + PM_ARENAS_APART * pm_nodes.count;
}
static inline enum pm_kind pm_kind_of_arena(unsigned arena) {
    static const uint8_t kind[PM_ARENA_GROUPS] = {PM_KIND_CONSERVATIVE, PM_KIND_POINTER_FREE,
                                                  PM_KIND_PINNED, PM_KIND_PINNED_POINTER_FREE};
    static const uint8_t apart[PM_ARENAS_APART] = {PM_KIND_CONSERVATIVE, PM_KIND_TYPED,
                                                   PM_KIND_TYPED | PM_KIND_POINTER_FREE,
                                                   PM_KIND_TYPED | PM_KIND_PINNED, PM_KIND_ALL};
    unsigned grouped = PM_ARENA_GROUPS * pm_kinds_first_arena;
    return (enum pm_kind)(arena < grouped ? kind[arena / pm_kinds_first_arena]
                                          : apart[(arena - grouped) / pm_nodes.count]);
}
static inline unsigned pm_held_arena(unsigned node) {
    return PM_ARENA_GROUPS * pm_kinds_first_arena + node;
}
static inline unsigned pm_typed_arena(enum pm_kind kind, unsigned node) {
    unsigned which = 1 + !pm_kind_has_pointers(kind) + 2 * pm_kind_is_pinned(kind);
    return pm_held_arena(0) + which * pm_nodes.count + node;
}
// One of those that no group has: no thread joins it, and it has a node, and no place.
static inline bool pm_arena_is_apart(unsigned arena) { return arena >= pm_held_arena(0); }
// The number of the arena of a kind without types at the place of one of malloc's.
static inline unsigned pm_kind_arena(enum pm_kind kind, unsigned arena) {
    unsigned group = !pm_kind_has_pointers(kind) + 2 * pm_kind_is_pinned(kind);
    return group * pm_kinds_first_arena + arena;
}
// Malloc's arena at the place of one of a kind. Not of one apart.
static inline unsigned pm_arena_place(unsigned arena) { return arena % pm_kinds_first_arena; }
// The end of the arenas that blocks of a kind need.
static inline unsigned pm_kind_arenas_end(enum pm_kind kind) {
    return pm_kind_is_typed(kind) ? pm_arenas_at_most() : pm_typed_arena(PM_KIND_TYPED, 0);
}

#endif

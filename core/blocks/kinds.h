// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of other kinds than PM_KIND_CONSERVATIVE (media/kind_format.h). A slab has blocks of one
// kind. So each kind has arenas of its own, one for each NUMA node; they come after the arenas that
// threads join, and a thread never joins them:
//
//   | arenas of threads | of recovered slabs | kind 1 of node 0, 1 ... | next kind ... |
//
// They count in pm_arena_count only from the first block of such a kind on. So a program that uses
// no other kind pays nothing for them.
#ifndef PM_KINDS_H
#define PM_KINDS_H

#include <stdint.h>

#include "base/nodes.h"
#include "media/kind_format.h"

#define PM_KINDS_APART 1u // kinds that have arenas of their own

// The number of the first arena of a kind.
extern uint16_t pm_kinds_first_arena;

static inline enum pm_kind pm_kind_of_arena(unsigned arena) {
    return arena < pm_kinds_first_arena ? PM_KIND_CONSERVATIVE : PM_KIND_POINTER_FREE;
}
static inline unsigned pm_kind_arena(enum pm_kind kind, unsigned node) {
    return pm_kinds_first_arena + ((unsigned)kind - 1) * pm_nodes.count + node;
}

#endif

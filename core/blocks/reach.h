// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Reach: where an arena finds a slab when its own bin has no free block. No free block is out of
// reach (PMAlloc, algorithm 1); each step is taken when those before it have found nothing.
//
//   1  an entirely free slab of another class of the arena
//   2  a slab of the class: of the node's recovered slabs, then of the node's other arenas; the
//      whole slab changes its arena
//   3  a slab of another class that morphs: a sparse one of the arena; then an empty or sparse one
//      of the recovered slabs and of a few other arenas of the node
//   4  a new slab, of the node's memory
//   5  the node's memory is out: the same as 1 and 3, of all arenas of the node, and from bins that
//      need the slab themselves
//   6  free blocks that stand in other arenas' bins of the node, one by one (pm_arena_fill)
//   7  other nodes: a block that is free there; then what an arena there finds in these steps
//      (pm_arena_far). The thread gets it past its cache, which holds blocks of its node only
//   8  what thread caches and bins keep (take_back.h)
//
// A node grows before it takes another node's free blocks: a heap that grows costs space once, a
// block of another node costs at each access. Where memory is limited, step 7 takes them.
//
// Steps 2 and 3 leave a bin that threads use its last slab with free blocks. So two arenas do not
// take one slab from each other in turn. In steps 1 to 5 the lock of the bin that gives a slab is
// only tried; steps 6 and 7 wait for it, holding no other. So a request fails only if there was no
// free block in any bin when it looked.
#ifndef PM_REACH_H
#define PM_REACH_H

#include <stddef.h>

#include "bin.h"
#include "kinds.h"

// Fills in `others` of one of malloc's arenas, which has its number and node. `memory` is for these
// lists, of all arenas, pm_reach_bytes() long.
size_t pm_reach_bytes(unsigned arenas);
void pm_reach_set_order(struct pm_arena *own, void *memory);
// The node's arena of a kind that nobody joins; the first that others ask.
struct pm_arena *pm_arena_of_recovered(enum pm_kind kind, unsigned node);
bool pm_arena_recovers(const struct pm_arena *arena);
// How many threads have joined the arena, or malloc's at its place.
uint32_t pm_arena_threads(const struct pm_arena *arena);

// Adds a slab with free blocks to the bin of class `cls`, whose lock is held. PM_STEP_NONE: there
// is none, and memory is out.
enum pm_step pm_reach_slab(struct pm_arena *arena, unsigned cls);

#endif

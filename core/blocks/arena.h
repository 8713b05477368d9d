// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Arenas: as many as processor cores, each with one bin for every size class (bin.h), and one more
// on each NUMA node for recovered slabs. An arena belongs to a node, and so do its slabs. A new
// thread joins the arena of its node that has the fewest threads. No thread joins an arena of
// recovered slabs: they go to whichever arena of the node asks first (reach.h). A slab belongs to
// one arena at a time. A block that any thread frees returns to its slab.
//
// Lock: one for each bin.
#ifndef PM_ARENA_H
#define PM_ARENA_H

#include "bin.h"
#include "population.h"

// Makes an arena for each core, and one for recovered slabs on each node; those are the last. Where
// there are several nodes, pm_nodes says how many cores each one has.
// A node's arenas take no memory before the node is used.
bool pm_arenas_init(unsigned cores);
// Returns the first arena of a node. At the first call of a node it takes pm_tcache_lock; no lock
// of a higher rank is held.
struct pm_arena *pm_arena_first(unsigned node);
// Returns the arena of the node with the fewest threads and counts the caller in.
// pm_tcache_lock is held.
struct pm_arena *pm_arena_join(unsigned node);
void pm_arena_leave(struct pm_arena *arena);

// Takes up to `want` blocks of a class, all of the arena's node. Blocks of one slab come by rising
// address. Another slab is sought only when the bin has no block at all (reach.h); so fewer than
// `want` is normal. 0: there is nothing but what other nodes have, and what thread caches and bins
// keep; see take_back.h.
unsigned pm_arena_fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want);
// Takes one block of another node, when the arena's own has none. NULL: there is none.
void *pm_arena_far(const struct pm_arena *arena, unsigned cls);
// Returns blocks of one class to their slabs, of whichever arenas. Slabs that become entirely free
// stay in their bin for a while, and then become free extents.
void pm_arena_return(unsigned cls, void **blocks, unsigned count);
// Takes a pinned block from the arena of its kind at the place of one of malloc's, or from those of
// other nodes; pm_arenas_add_kinds() has been called. NULL: there is none.
void *pm_arena_take_pinned(const struct pm_arena *place, enum pm_kind kind, unsigned cls);
// The same for a block of a type, whatever its kind.
void *pm_arena_take_typed(struct pm_sort sort, unsigned cls);
// Returns a block whose tag is PM_TAG_KIND to its slab. False: `p` is none.
bool pm_arena_return_kind(void *p);
// The block around an offset in a slab, as pm_slab_find(), in a heap that is in use: the slab may
// be morphing. A handler that has interrupted the allocator gets an answer without the lock.
bool pm_arena_find(uint32_t slab, uint32_t offset, struct pm_slab_block *block);
// Makes the arenas of the kinds count (kinds.h). pm_tcache_lock is held, or no other thread runs.
void pm_arenas_add_kinds(enum pm_kind kind);
// Frees the blocks of class `cls` that a collection beside the program has found to be garbage: bit
// i of `alive` is clear. All blocks of the slab were in use when the marking began. So one that is
// garbage still is: no thread has its address, and the slab is there because of it. Other blocks
// may have come and gone. Returns how many it has freed.
unsigned pm_arena_reclaim(uint32_t slab, unsigned cls, const uint64_t *alive);
// Writes the tags of a slab that is untagged. False: there was nothing to write.
bool pm_arena_write_tags(uint32_t slab);
// Writes the tags, if it is untagged. Returns at which distance its blocks can begin now
// (pm_slab_stride()); 0: there is no such slab.
unsigned pm_arena_stride(uint32_t slab);
// Adds a slab to its node's arena of recovered slabs. No other thread runs yet.
void pm_arena_adopt(uint32_t slab);

#endif

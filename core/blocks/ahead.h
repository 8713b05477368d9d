// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slabs and large blocks made ahead, where a flush waits for the disk (pm_persist_waits). A request
// that has to make one makes a group, because a group waits as long as one:
//
//   slabs          headers: one flush | entries: one flush    the others are empty slabs of bins
//   large blocks                        entries: one flush    the others lie in the extent cache
//
// Slabs and extents made ahead are nothing special. On media nothing reaches them: recovery frees
// them. In memory they are empty slabs and cached extents: a request finds them, unwanted ones go
// with age, and all of them go before a request fails. They have space on the file system, and
// nobody has touched them.
//
// How many of a size are made: as many as last time and as many again, if those were all taken;
// one, if some have aged. A group is for all sizes of the arena that have run out: the next request
// of them would make the next group. With PMALLOC_DECAY_MS=0 nothing is made ahead,
// nor while the heap is longer than half of its limit: what lies between the blocks in use decides
// there whether a long one still fits.
#ifndef PM_AHEAD_H
#define PM_AHEAD_H

#include <stdbool.h>

#include "base/options.h"
#include "bin.h"
#include "extent_cache.h"
#include "media/persist.h"

static inline bool pm_makes_ahead(void) {
    return pm_persist_waits() && pm_heap_on_media() && pm_options.decay_ms.number &&
           atomic_load_explicit(&pm_heap.length, memory_order_relaxed) <= pm_heap.limit / 2;
}

// Adds a slab of class `cls` to the arena's bin, whose lock is held, and more to the bins that have
// run out. The arena has no blocks of a kind. False: memory is out.
bool pm_ahead_slabs(struct pm_arena *arena, unsigned cls);
// Returns an extent for a block that is not huge, as pm_extent_cache_allocate() does. More go to
// the cache, if it is of that node.
uint32_t pm_ahead_extents(struct pm_extent_cache *cache, unsigned node, uint64_t pages,
                          uint64_t align_pages);

#endif

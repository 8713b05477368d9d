// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Space from and back to the file system: the frontier, and the decay of reclaimed extents. The
// caller holds the shard's extent lock, except where a comment says that the function takes it.
#ifndef PM_FRONTIER_H
#define PM_FRONTIER_H

#include "base/options.h"
#include "extent.h"

#define PM_REGION_PAGES (PM_REGION_SIZE >> PM_PAGE_SHIFT)

// Moves a shard's frontier up by whole regions, by at least `pages` pages, and makes a retained
// extent of them. False: the shard is at its limit, or memory or the file system is full.
bool pm_frontier_grow(struct pm_shard *s, uint64_t pages);
// If the retained extent `index` ends at the frontier, moves the frontier down by the whole regions
// in it.
void pm_frontier_shrink(struct pm_shard *s, uint32_t index);
// Releases the space of reclaimed extents that has decayed, for a bounded time. Only every
// PM_DECAY_CALLS-th call looks at the clock: decay needs no finer steps.
#define PM_DECAY_CALLS 16u
void pm_extent_decay_now(struct pm_shard *s);
static inline void pm_extent_decay(struct pm_shard *s) {
    if (s->extents->decay_calls++ % PM_DECAY_CALLS == 0 || !pm_options.decay_ms.number)
        pm_extent_decay_now(s);
}
// Releases the space of reclaimed extents, oldest first, until `limit` pages are left or the file
// system refuses.
void pm_extent_purge_to(struct pm_shard *s, uint64_t limit);
// Takes the locks. In all shards: releases the space that has decayed; if `all`, of everything
// reclaimed. On DAX only whole units (pm_heap_unit). Returns whether any space was released.
bool pm_extent_purge(bool all);
// Takes the locks. Called at the start and the end of a program, which must not wait for a slow
// disk: releases space for PM_PURGE_MS, the largest extents first (on DAX the oldest). The rest
// stays reclaimed; it is reused, or decays.
#define PM_PURGE_MS 250u
void pm_extent_purge_some(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents handed out and taken back. An extent is cut from a free one that fits best; the free
// rest, and an extent that is freed, merge with free neighbours of the same state. If no free
// extent fits, the frontier moves by whole regions of 4 MiB. Functions may be called by any thread
// and take the extent lock themselves, unless their comment says otherwise.
#ifndef PM_EXTENT_TAKE_H
#define PM_EXTENT_TAKE_H

#include <stdatomic.h>

#include "extent.h"

// Takes an extent of `pages` pages whose first is a multiple of `align_pages` (a power of two), of
// a NUMA node's memory. It does not stand in the log yet, so it is free after a crash. 0: the heap
// is at its limit or the file system is full; or, unless `grow` is set, the heap would have to
// grow, or give back what it keeps.
uint32_t pm_extent_take_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow);
// The same for a slab. Unless its pages have had space before, or lie behind PM_BARE_END
// (extent.h), the extent is bare: all its pages are holes (extent_holes.h).
uint32_t pm_extent_take_bare_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow);
static inline uint32_t pm_extent_take(uint64_t pages, uint64_t align_pages) {
    return pm_extent_take_on(0, pages, align_pages, true);
}
// Requests of its node ask this shard first, until another one has served a request. For tests.
void pm_extent_favour(unsigned shard);
// Appends a taken extent's entry to the log; it is durable on return. False: the log has no room,
// and the extent is free again.
bool pm_extent_publish(uint32_t index, bool slab);
// Frees a taken extent that stands in no log.
void pm_extent_untake(uint32_t index);
// Frees an active extent. The end of its entry is durable before its pages can be taken again.
void pm_extent_release(uint32_t index);
// Frees the active extents from `first` on, linked by `next`. The ends of their entries become
// durable all at once.
void pm_extent_release_all(uint32_t first);
// Takes and publishes an extent for a block, in one step.
uint32_t pm_extent_allocate_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow);
static inline uint32_t pm_extent_allocate(uint64_t pages, uint64_t align_pages) {
    return pm_extent_allocate_on(0, pages, align_pages, true);
}
// Returns the extent of the large block at `p`, if its tag still says that it is allocated; else 0.
uint32_t pm_extent_find(const void *p);
// Clears the tag of the large block at `p` and frees its extent, under one hold of the lock: of two
// frees of a block one fails. False: no allocated large block starts at `p`.
bool pm_extent_free_block(const void *p);
// The same, but the extent stands for the next block (extent_standing.h). False: it may not, and
// nothing has changed.
bool pm_extent_stand_block(const void *p);
// The same of an extent that may stand, and whose tag the caller has cleared by exchange.
void pm_extent_stand(uint32_t index);

// ---- recovery (one thread for each shard; takes no lock) ----
// Frees an active extent of a shard that recovery found dead. The end of its entry is not durable
// yet.
// pm_extent_forgotten() makes all of them durable at once. Before that, no extent of the shard may
// be taken and no space released: the log may still name the pages.
void pm_extent_forget(uint32_t index);
void pm_extent_forgotten(struct pm_shard *s);

// The active extents have slabs, large blocks, or nothing: then they are cached.
struct pm_extent_stats {
    uint64_t active, active_pages, slab_pages, cached, cached_pages;
    uint64_t holes; // of slab_pages, those that have no space
    uint64_t reclaimed_pages, retained_pages;
};
struct pm_extent_stats pm_extent_stats(void);

// Set when the medium has no space for a request. Cleared by who gives space back.
extern _Atomic bool pm_extent_short;

// ---- for other files of this folder, which hold the lock ----
// Whether space for `pages` more pages leaves room for what huge blocks were promised.
bool pm_extent_has_room(struct pm_shard *s, uint64_t pages);
// Whether the file system has room for everything that extents were promised and have not taken. A
// page of theirs may then give its space back: it is promised to it again.
bool pm_extent_may_promise(struct pm_shard *s);
// The extents that were asked for are active now, or were not given.
void pm_extent_asked(struct pm_shard *s);
// Carves `pages` aligned pages out of the free extent `index` and makes them active.
uint32_t pm_extent_carve(struct pm_shard *s, uint32_t index, uint64_t pages, uint64_t align);

#endif

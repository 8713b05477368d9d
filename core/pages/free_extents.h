// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The free extents of each shard, reclaimed and retained, by size and age (shard_extents.h). The
// extent lock of the shard is held.
#ifndef PM_FREE_EXTENTS_H
#define PM_FREE_EXTENTS_H

#include "extent.h"

// Returns the list that an extent of `pages` pages belongs to. If `pages` is a size that
// pm_large_pages() gives, every extent of that list is at least as long.
static inline unsigned pm_size_list(uint64_t pages) {
    if (pages < 8)
        return (unsigned)pages;
    unsigned top = 63u ^ (unsigned)__builtin_clzll(pages);
    return (top - 2) * 8 + (unsigned)(pages >> (top - 3) & 7);
}

// The head of the list of a set that an extent of this place and length belongs to.
uint32_t *pm_free_head(struct pm_free_set *set, const struct pm_extent *e);
// Puts an extent into the set of `state`, and its bounds into the page map.
void pm_free_insert(struct pm_shard *s, uint32_t index, enum pm_extent_state state);
// Takes an extent out of its set; the page map keeps its bounds.
void pm_free_remove(struct pm_shard *s, uint32_t index);
// Best fit: searches the lists from the shortest extents to the longest and returns the first that
// has `pages` pages from a multiple of `align` on. 0: there is none. For a slab it looks at one
// extent of a list, for a block of pm_large_pages() pages without alignment, too; for other
// requests at all extents of the lists whose lengths are less than pages + align - 1.
uint32_t pm_free_fit(const struct pm_free_set *set, uint64_t pages, uint64_t align);
// Returns an extent from the list of the longest ones; 0: the set is empty.
uint32_t pm_free_largest(const struct pm_free_set *set);
// Inserts a free extent, merged with its neighbours if they have the same state. Returns the merged
// extent.
uint32_t pm_free_coalesce(struct pm_shard *s, uint32_t index, enum pm_extent_state state);
// Adds a reclaimed extent as the newest, or takes one out, in the order by time of freeing.
void pm_age_insert(struct pm_shard *s, uint32_t index);
void pm_age_remove(struct pm_shard *s, uint32_t index);
// Makes an active extent reclaimed. Its entry has been ended durably, or it never had one.
void pm_extent_free(struct pm_shard *s, uint32_t index);

#endif

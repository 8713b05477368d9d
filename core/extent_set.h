// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Between the extent_*.c files: extent headers, and the free extents by size and age. Extent lock.
#ifndef PM_EXTENT_SET_H
#define PM_EXTENT_SET_H

#include "extent.h"

#define PM_REGION_PAGES (PM_REGION_SIZE >> PM_PAGE_SHIFT)
#define PM_SIZE_LISTS 224 // exact below 8 pages, then eighths of a doubling

// Free extents of one state. `some` has a bit for every list that is not empty.
struct pm_free_set {
    uint32_t head[PM_SIZE_LISTS];
    uint64_t some[(PM_SIZE_LISTS + 63) / 64];
    uint64_t pages;
};
extern struct pm_free_set pm_reclaimed, pm_retained;
extern uint32_t pm_oldest_reclaimed; // then by `newer`

struct pm_active {
    uint64_t pages, count, slab_pages;
};
extern struct pm_active pm_active;

// A header for [page, page + pages); 0 when there are too many extents.
uint32_t pm_header_new(uint64_t page, uint64_t pages);
void pm_header_drop(uint32_t index);
// Makes the extent's first and last page name `value`.
void pm_bounds_set(const struct pm_extent *e, uint32_t value);

void pm_free_insert(uint32_t index, enum pm_extent_state state);
void pm_free_remove(uint32_t index);
// Best fit: the lowest size list with an extent that holds `pages` from a multiple of `align` on; 0: none.
uint32_t pm_free_fit(const struct pm_free_set *set, uint64_t pages, uint64_t align);
// Inserts a free extent, merged with neighbours of the same state. Returns the merged extent.
uint32_t pm_free_coalesce(uint32_t index, enum pm_extent_state state);
// Reclaimed extents by time of freeing.
void pm_age_insert(uint32_t index);
void pm_age_remove(uint32_t index);
// Cuts [page + pages, end) off an extent that is in no list; the tail gets the same flags.
uint32_t pm_extent_cut(uint32_t index, uint64_t pages);

// Adds at least `pages` retained pages behind the frontier, in whole regions.
bool pm_frontier_grow(uint64_t pages);
// A retained extent at the frontier leaves the heap, in whole regions.
void pm_frontier_shrink(uint32_t index);
// Gives back what has decayed ...
void pm_extent_decay(void);
// ... or all but `limit` pages, oldest first; stops where the file system gives nothing back.
void pm_extent_purge_to(uint64_t limit);

// Carves `pages` aligned pages out of the free extent `index` and makes them active.
uint32_t pm_extent_carve(uint32_t index, uint64_t pages, uint64_t align);
// Makes an active extent reclaimed; its log entry is ended already, or never was.
void pm_extent_free(uint32_t index);
// The lesser entry of an interrupted resize that opening found and, read-only, may not erase; PM_LOG_NOWHERE.
extern pm_log_pos pm_unfinished_resize;
// pm_log_moved: the log's slow GC moved an extent's entry.
void pm_extent_entry_moved(uint64_t entry, pm_log_pos to);

#endif

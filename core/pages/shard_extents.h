// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the allocator knows of the extents of one shard (media/shard.h), beside their headers. Lock:
// the shard's extent lock, shard->lock.
#ifndef PM_SHARD_EXTENTS_H
#define PM_SHARD_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decay.h"
#include "base/lazy_table.h"
#include "media/heap.h"
#include "media/log/log_entry.h"

// Up to 7 pages there is one list for each length; above, eight lists for each doubling of it.
#define PM_SIZE_LISTS 224

// Lists that have a twin for extents in which no slab has room: those of 16 to 31 pages. Longer
// extents have room for one wherever they lie, shorter ones nowhere.
#define PM_CROOKED_FIRST 16u
#define PM_CROOKED_LISTS 8u

#define PM_GAPS_KNOWN 8

#define PM_STANDING 32u // extents that may stand (extent_standing.h)

// The free extents of one state, in lists by length. `some` has a bit for each list, set while the
// list is not empty; `some_crooked` for the twins. `pages` is the sum of all lengths.
struct pm_free_set {
    uint32_t head[PM_SIZE_LISTS];
    uint64_t some[(PM_SIZE_LISTS + 63) / 64];
    uint32_t crooked[PM_CROOKED_LISTS];
    uint64_t some_crooked;
    uint64_t pages;
};

struct pm_active {
    uint64_t pages, count, slab_pages, holes;
};

// A resize between its new entry and the end of its old one (extent_entry.c).
struct pm_resize {
    bool under_way;
    uint64_t page;
    uint32_t old_pages;
    pm_log_pos old;
};

// Its size is a power of two, so that a shift leads from an index to it.
struct pm_shard_extents {
    // The headers. The indices in use lie between pm_index_first(), which stands for no extent and
    // is out of bounds until there is one, and that + `top`; `spare` begins the list of those that
    // are not in use, linked by `next`.
    _Alignas(4096) struct pm_lazy_table headers;
    uint32_t top, spare;
    struct pm_active active; // sums over the active extents
    struct pm_free_set reclaimed, retained;
    uint32_t oldest, newest; // reclaimed, by the time of freeing
    struct pm_decay decay;
    unsigned decay_calls;
    // True after an opening has made reclaimed extents from gaps: they may have holes, and nobody
    // has asked the file system for that space yet. Becomes false when the file system has said
    // that it has room for all extents.
    bool gaps_unpromised;
    // Whether any huge block has been promised space instead of getting it
    // (PMALLOC_RESERVE=lazy). Space that is allocated after that must leave room for the promises.
    bool promises;
    // Pages that a request asks of the file system just now: neither active nor reclaimed yet. Set
    // under the lock; other shards read it without (extent_take.c).
    _Atomic uint64_t asked;
    struct pm_resize resizing;
    // Those that stand, the oldest first (extent_standing.h).
    uint32_t standing[PM_STANDING];
    uint32_t standing_count;
    // The first pages of the first gaps between extents, as pm_extent_check() saw them, rising;
    // unused places: the shard's end.
    uint64_t gap[PM_GAPS_KNOWN];
    // The position of the shorter entry of an interrupted resize, until pm_extent_fill_gaps()
    // erases it. An opening that may not write keeps it. PM_LOG_NOWHERE: there is none.
    pm_log_pos unfinished_resize;
};
_Static_assert(sizeof(struct pm_shard_extents) == 4096, "a power of two");
extern struct pm_shard_extents pm_shard_extents[PM_SHARDS];

// The headers of a shard's extents have indices of their own, so an index tells the shard, too.
#define PM_INDEX_SHIFT 26
_Static_assert(PM_SHARD_RANGE / 16384 <= 1ull << PM_INDEX_SHIFT, "a header for each 16 KiB");

static inline struct pm_shard_extents *pm_extents_of(uint32_t index) {
    return &pm_shard_extents[index >> PM_INDEX_SHIFT];
}
static inline struct pm_shard *pm_shard_of_extent(uint32_t index) {
    return &pm_heap.shard[index >> PM_INDEX_SHIFT];
}
// The index of the shard's first header, which is not used: index 0 is no extent.
static inline uint32_t pm_index_first(const struct pm_shard *s) {
    return (uint32_t)(s->offset >> PM_SHARD_SHIFT << PM_INDEX_SHIFT);
}

#endif

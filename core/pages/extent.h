// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents: runs of pages. They tile the heap's range up to the frontier, without gaps. Slabs, large
// blocks and huge blocks are extents.
//
//   active      handed out or cached; exactly these stand in the bookkeeping log
//   reclaimed   free, still having space on the file system; decays into retained (base/decay.h)
//   retained    free, address space only, reads as zeroes; at the frontier it leaves the heap
//   barred      free in the file, but not for this process, which has borrowed the heap: reading a
//               hole of the file may take space on the file system
//
// This file has the extents' headers. These files build on it, from low to high:
//
//   extent_entry    an extent's entry in the log
//   shard_extents   what belongs to one shard: free extents, sums, decay
//   free_extents    free extents by size and age
//   frontier        space from and back to the file system
//   extent_standing extents that keep their entry after a free, for the next block
//   extent_take     extents handed out and taken back
//   extent_resize   an active extent changes its length
//   extent_room     a part of an extent is room for its block to grow
//   extent_adopt    extents of a heap that is being opened
//
// A cached extent is active, but no block is in it: a large block was freed, and its entry still
// stands, so that the extent can be handed out again without the log (blocks/extent_cache.h; huge
// blocks and those of a kind: extent_standing.h).
//
// Invariant: the page map has an extent's index at its first and last page; its other pages
// have 0.
//
// What is durable before what: an entry is durable in the log before the extent's pages are used.
// Its end, a tombstone or the erased entry, is durable before they are handed out again or go back
// to the file system. So after a crash no two entries claim one page, and no entry stands for pages
// that something else has used. The one exception is an interrupted resize (extent_entry.c).
//
// Lock: the extent lock of the extent's shard. Functions that other folders call take it, unless
// their comment says otherwise. Functions that only the files of this folder call expect the caller
// to hold it. Recovery is single-threaded and takes no lock.
#ifndef PM_EXTENT_H
#define PM_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "media/heap.h"
#include "media/log/log.h"
#include "media/persist.h"
#include "pagemap.h"
#include "shard_extents.h"

enum pm_extent_state {
    PM_EXTENT_UNUSED,
    PM_EXTENT_ACTIVE,
    PM_EXTENT_RECLAIMED,
    PM_EXTENT_RETAINED,
    PM_EXTENT_BARRED
};

// An extent's header, in volatile memory. (The papers call it VEH.)
struct pm_extent {
    uint64_t page;         // first page, from pm_base
    uint32_t pages;        // length
    uint8_t state;         // enum pm_extent_state
    uint8_t slab;          // active: has a slab
    uint8_t backed;        // every page has space on the file system
    uint8_t zero;          // reads as zeroes
    pm_log_pos log;        // active: the position of its entry in the log
    uint32_t next, prev;   // free: neighbours in its size list; cached: the next of its list
    uint32_t older, newer; // reclaimed: neighbours by time of freeing; cached: `older` says when
    uint16_t marked;       // for the collector
    uint16_t holes;        // a slab's pages that have no space for certain (extent_holes.h)
    uint8_t kind;          // active, no slab: enum pm_kind of the block in it
    uint8_t held;          // the same: it was there when the heap was opened (blocks/kinds.h)
    uint16_t type;         // the same, if the kind is typed: the block's
    uint32_t used;         // pages of the block, if there is room behind it (extent_room.h); else 0
    uint8_t stands;        // active: without a block, for the next one (extent_standing.h)
} __attribute__((aligned(64))); // those of two threads' blocks share no cache line

// An index names an extent; 0 is no extent.
extern struct pm_extent *pm_extents;

#define PM_HUGE_PAGES ((uint32_t)((2u << 20) >> PM_PAGE_SHIFT)) // an extent with more is huge
// The longest that pm_large_pages() gives below that: what an arena's extent cache may have.
#define PM_CACHED_PAGES_MAX (PM_HUGE_PAGES - PM_HUGE_PAGES / 16)

// The first slabs of the bins may have holes whatever their class (blocks/holes.h), but only so far
// from the start of their shard: no look at holes goes on through a long heap for their sake.
#define PM_BARE_END ((uint64_t)4 << 20)
static inline bool pm_extent_may_be_bare(uint64_t offset) {
    return offset % PM_SHARD_RANGE < PM_BARE_END && !pm_persist_waits();
}

bool pm_extent_init(void);

static inline void *pm_extent_address(const struct pm_extent *e) {
    return pm_heap_at(e->page << PM_PAGE_SHIFT);
}
static inline size_t pm_extent_bytes(const struct pm_extent *e) {
    return (size_t)e->pages << PM_PAGE_SHIFT;
}
// The same without the room behind the block. Acquire: who gives the room back makes the extent
// shorter first.
static inline uint64_t pm_extent_used(const struct pm_extent *e) {
    uint32_t used = __atomic_load_n(&e->used, __ATOMIC_ACQUIRE);
    return used ? used : __atomic_load_n(&e->pages, __ATOMIC_RELAXED);
}
// The number of the slab that the extent has.
static inline uint32_t pm_extent_slab(const struct pm_extent *e) {
    return (uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT);
}

// The tag of a large block.
static inline uint8_t pm_extent_tag(const struct pm_extent *e) {
    return e->kind == PM_KIND_CONSERVATIVE && !e->held ? PM_TAG_EXTENT : PM_TAG_KIND;
}

static inline void pm_extent_set_tag(const struct pm_extent *e) {
    __atomic_store_n(pm_tag_of_page(e->page), pm_extent_tag(e), __ATOMIC_RELAXED);
}

// Whether an active extent is cached: the block in it is freed, and its entry still stands in the
// log (blocks/extent_cache.h, extent_standing.h). The tag decides: it stands exactly while a large
// block is in use.
static inline bool pm_extent_is_cached(const struct pm_extent *e) {
    return e->state == PM_EXTENT_ACTIVE && !e->slab && !e->held && e->log != PM_LOG_NOWHERE &&
           __atomic_load_n(pm_tag_of_page(e->page), __ATOMIC_RELAXED) == PM_TAG_NONE;
}

// For loops over all extents by address: each step waits for what the one before has read. The next
// ones are mostly slabs in a row.
static inline void pm_extent_prefetch(const struct pm_extent *e) {
    __builtin_prefetch(e + 8);
    __builtin_prefetch(pm_page_extent(e->page + 8 * (PM_SLAB_SIZE >> PM_PAGE_SHIFT)));
}

// Returns the next active extent of a shard by index, which is no order of addresses; 0: there is
// none. The first index to give is pm_index_first(s).
static inline uint32_t pm_extent_next_active_in(const struct pm_shard *s, uint32_t index) {
    uint32_t end = pm_index_first(s) + s->extents->top;
    while (++index < end)
        if (pm_extents[index].state == PM_EXTENT_ACTIVE)
            return index;
    return 0;
}
// The same of all shards. The loop over all active extents is
//
//   for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
//
// The body may release extents. No lock is taken: the caller holds it, or is the only thread.
static inline uint32_t pm_extent_next_active(uint32_t index) {
    uint32_t found = 0;
    for (unsigned i = index >> PM_INDEX_SHIFT; i < pm_heap.shards && !found; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint32_t first = pm_index_first(s);
        found = pm_extent_next_active_in(s, index > first ? index : first);
    }
    return found;
}
// Calls `fn` for the range of every active extent until `fn` returns false. Returns false if it
// did.
bool pm_extent_each_active(pm_range_fn *fn, void *arg);

// ---- for the other files of this folder ----
// Returns a new header for [page, page + pages). 0: there are too many extents, or memory is out.
uint32_t pm_header_new(struct pm_shard *s, uint64_t page, uint64_t pages);
static inline void pm_header_drop(struct pm_shard *s, uint32_t index) {
    pm_extents[index].state = PM_EXTENT_UNUSED;
    pm_extents[index].next = s->extents->spare;
    s->extents->spare = index;
}
// Sets the page map at the extent's first and last page to `value`.
static inline void pm_bounds_set(const struct pm_extent *e, uint32_t value) {
    *pm_page_extent(e->page) = value;
    *pm_page_extent(e->page + e->pages - 1) = value;
}
// Cuts off all but the first `pages` pages of an extent that is in no list. Returns the new extent,
// the tail, with the same `backed` and `zero`. Both are missing in the page map then. 0: there is
// no header for the tail; nothing has changed.
uint32_t pm_extent_cut(struct pm_shard *s, uint32_t index, uint64_t pages);

#endif

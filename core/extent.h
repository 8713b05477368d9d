// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents: page-granular pieces of the heap range, which is partitioned into them without gaps up to the
// frontier. Slabs, large blocks and huge blocks are all extents; they differ in size only.
//
//   activated   handed out; exactly these stand in the bookkeeping log
//   reclaimed   free, still holding space on the file system; decays (smootherstep) into
//   retained    free, address space only, reads as zeroes; at the frontier it shrinks the data file
//
// Large sizes come from 4 MiB regions by best fit over size-ordered lists, are split, and coalesce with free
// neighbours of the same state. Blocks over 2 MiB extend the frontier by their own size where nothing free
// fits.
//
// Invariant: pm_page_extent holds an extent's index at its first and last page; its other pages hold 0.
// Thread-safe: every function takes the extent lock itself, unless it says otherwise.
#ifndef PM_EXTENT_H
#define PM_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "booklog.h"
#include "heap.h"
#include "lock.h"
#include "pagemap.h"

enum pm_extent_state {
    PM_EXTENT_UNUSED,
    PM_EXTENT_ACTIVE,
    PM_EXTENT_RECLAIMED,
    PM_EXTENT_RETAINED
};

// A virtual extent header (VEH), in volatile memory.
struct pm_extent {
    uint64_t page;         // first page, from pm_base
    uint32_t pages;        // length
    uint8_t state;         // enum pm_extent_state
    uint8_t slab;          // active: holds a slab
    uint8_t backed;        // every page is allocated on the file system
    uint8_t zero;          // reads as zeroes
    pm_log_pos log;        // active: where it stands in the log
    uint32_t next, prev;   // free: its size list
    uint32_t older, newer; // reclaimed: by time of freeing
    uint32_t marked;       // collector's
};

// Index 0 is no extent.
extern struct pm_extent *pm_extents;
extern uint32_t pm_extent_top; // indices in use are below
extern struct pm_lock pm_extent_lock;

#define PM_HUGE_PAGES ((uint32_t)((2u << 20) >> PM_PAGE_SHIFT)) // above this an extent is huge

bool pm_extent_init(void);

// Takes `pages` pages whose first is a multiple of `align_pages` (a power of two). Not logged yet, so a crash
// frees it. 0 when the heap is at its limit or the file system is full.
uint32_t pm_extent_take(uint64_t pages, uint64_t align_pages);
// Makes a taken extent durable in the log; on false it has been given back.
bool pm_extent_publish(uint32_t index, bool slab);
// Frees an active extent: tombstone first, then it may be reused.
void pm_extent_release(uint32_t index);
// Takes an extent for a block and publishes it. 0 when memory is out.
uint32_t pm_extent_allocate(uint64_t pages, uint64_t align_pages);
// The active, non-slab extent that starts at `p` and whose tag still stands; 0 otherwise.
uint32_t pm_extent_find(const void *p);
// Clears the tag and frees that extent in one step, so that of two frees of a block one fails. False: none starts at `p`.
bool pm_extent_free_block(const void *p);
// Resizes in place, to the left of a free neighbour or by moving the frontier. False: nothing has changed.
bool pm_extent_resize(uint32_t index, uint64_t pages);
// Gives back what has decayed; `all` gives back everything free. True when anything was given back.
bool pm_extent_purge(bool all);

// ---- opening a heap (single-threaded) ----
// Registers a live log entry; PM_DAMAGE when it lies outside the heap or begins where another does.
// First of all: makes the tables writable as far as the heap reaches.
int pm_extent_cover(struct pm_error *err);
int pm_extent_adopt(uint64_t entry, pm_log_pos pos, struct pm_error *err);
// Checks that adopted extents do not overlap. Writes nothing.
int pm_extent_check(struct pm_error *err);
// Makes the gaps between them retained extents. With `repair` gaps are given back to the file system and an
// interrupted resize is finished.
int pm_extent_fill_gaps(bool repair, struct pm_error *err);

// Calls `fn` for every active extent's range, by index. No lock: single-threaded callers only.
bool pm_extent_each_active(pm_range_fn *fn, void *arg);

struct pm_extent_stats {
    uint64_t active, active_pages, slab_pages, reclaimed_pages, retained_pages;
};
struct pm_extent_stats pm_extent_stats(void);

static inline void *pm_extent_address(const struct pm_extent *e) {
    return pm_heap_at(e->page << PM_PAGE_SHIFT);
}
static inline size_t pm_extent_bytes(const struct pm_extent *e) {
    return (size_t)e->pages << PM_PAGE_SHIFT;
}

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Space from and back to the file system: the frontier, and the decay of what is free.
#include <errno.h>
#include <string.h>

#include "decay.h"
#include "extent_set.h"
#include "options.h"
#include "os.h"
#include "slab.h"

// Adds at least `pages` retained pages behind the frontier, in whole regions.
static bool cover(uint64_t bytes) { return pm_pagemap_cover(bytes) && pm_slab_cover(bytes); }

int pm_extent_cover(struct pm_error *err) {
    return cover(pm_heap.data.size)
               ? PM_OK
               : pm_fail(err, PM_OPERATIONAL, "%s: no memory for the tables of its extents: %s",
                         pm_heap.dir, strerror(errno));
}

bool pm_frontier_grow(uint64_t pages) {
    uint64_t from = pm_heap.frontier >> PM_PAGE_SHIFT;
    uint64_t to = (from + pages + PM_REGION_PAGES - 1) / PM_REGION_PAGES * PM_REGION_PAGES;
    uint32_t index = cover(to << PM_PAGE_SHIFT) ? pm_header_new(from, to - from) : 0;
    if (!index)
        return false;
    if (!pm_heap_set_frontier(to << PM_PAGE_SHIFT)) {
        pm_header_drop(index);
        return false;
    }
    pm_extents[index].zero = 1;
    pm_free_coalesce(index, PM_EXTENT_RETAINED);
    return true;
}

// A retained extent at the frontier leaves the heap, in whole regions.
void pm_frontier_shrink(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t keep = (e->page + PM_REGION_PAGES - 1) / PM_REGION_PAGES * PM_REGION_PAGES;
    uint64_t end = e->page + e->pages;
    if (end << PM_PAGE_SHIFT != pm_heap.frontier || keep >= end)
        return;
    pm_free_remove(index);
    pm_bounds_set(e, 0);
    if (pm_heap_set_frontier(keep << PM_PAGE_SHIFT)) {
        e->pages = (uint32_t)(keep - e->page);
        if (!e->pages) {
            pm_header_drop(index);
            return;
        }
    }
    pm_free_insert(index, PM_EXTENT_RETAINED);
}

static void purge_one(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    if (!pm_heap_uncommit(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e))) {
        pm_age_remove(index); // the file system cannot; do not try it again before the others
        pm_age_insert(index);
        return;
    }
    pm_free_remove(index);
    e->zero = 1;
    e->backed = 0;
    pm_frontier_shrink(pm_free_coalesce(index, PM_EXTENT_RETAINED));
}

// Oldest first; stops where the file system gives nothing back.
void pm_extent_purge_to(uint64_t limit) {
    for (uint64_t before = UINT64_MAX; pm_reclaimed.pages > limit && pm_reclaimed.pages < before;) {
        before = pm_reclaimed.pages;
        purge_one(pm_oldest_reclaimed);
    }
}

// A coarse clock is enough to be looked at now and then.
#define TICKS 16u

void pm_extent_decay(void) {
    static unsigned calls; // the extent lock is held
    uint64_t limit;
    if (pm_options.decay_ms.number && calls++ % TICKS)
        return;
    if (pm_decay_tick(pm_os_now_ms(), pm_reclaimed.pages, &limit))
        pm_extent_purge_to(limit);
}

bool pm_extent_purge(bool all) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint64_t before = pm_reclaimed.pages;
    if (all)
        pm_extent_purge_to(0);
    else
        pm_extent_decay();
    bool gave = pm_reclaimed.pages < before;
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return gave;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "frontier.h"

#include "base/lazy_table.h"
#include "base/options.h"
#include "base/os.h"
#include "extent_standing.h"
#include "free_extents.h"
#include "media/backing/backing.h"
#include "media/persist.h"

// Where the new length has to be written to a disk, with all that is dirty in the file, it is made
// for twice the heap. The new pages take no space until they are used.
// Other shards may need what the limit leaves.
#define SHARE_AHEAD 4
#define AHEAD_PAGES_MAX ((256ull << 20) >> PM_PAGE_SHIFT)

static uint64_t ahead(const struct pm_shard *s) {
    uint64_t pages = s->frontier >> PM_PAGE_SHIFT;
    pages = pages < AHEAD_PAGES_MAX ? pages : AHEAD_PAGES_MAX;
    return pm_heap.shards == 1 ||
                   pm_heap.length + (pages << PM_PAGE_SHIFT) <= pm_heap.limit / SHARE_AHEAD
               ? pages
               : 0;
}

static bool waits(void) { return pm_persist_waits() && pm_heap_on_media(); }

static bool grow(struct pm_shard *s, uint64_t pages) {
    uint64_t from = s->frontier >> PM_PAGE_SHIFT;
    uint64_t to = (from + pages + PM_REGION_PAGES - 1) / PM_REGION_PAGES * PM_REGION_PAGES;
    uint32_t index =
        to <= PM_SHARD_PAGES && pm_range_tables_cover(pm_shard_number(s), to << PM_PAGE_SHIFT)
            ? pm_header_new(s, pm_shard_end(s), to - from)
            : 0;
    if (!index)
        return false;
    if (!pm_shard_set_frontier(s, to << PM_PAGE_SHIFT)) {
        pm_header_drop(s, index);
        return false;
    }
    pm_extents[index].zero = pm_heap_fresh_is_zero();
    pm_free_coalesce(s, index, PM_EXTENT_RETAINED);
    return true;
}

bool pm_frontier_grow(struct pm_shard *s, uint64_t pages) {
    return (waits() && pages < ahead(s) && grow(s, ahead(s))) || grow(s, pages);
}

void pm_frontier_shrink(struct pm_shard *s, uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t keep = (e->page + PM_REGION_PAGES - 1) / PM_REGION_PAGES * PM_REGION_PAGES;
    uint64_t end = e->page + e->pages;
    if (end != pm_shard_end(s) || keep >= end)
        return;
    pm_free_remove(s, index);
    pm_bounds_set(e, 0);
    if (pm_shard_set_frontier(s, (keep << PM_PAGE_SHIFT) - s->offset)) {
        e->pages = (uint32_t)(keep - e->page);
        if (!e->pages) {
            pm_header_drop(s, index);
            return;
        }
    }
    pm_free_insert(s, index, PM_EXTENT_RETAINED);
}

// Releases the space of the pages [from, to) of a reclaimed extent, which become retained. False:
// the file system refuses, or there is no header for a part; all of it stays reclaimed.
static bool purge_part(struct pm_shard *s, uint32_t index, uint64_t from, uint64_t to) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t rest = index;
    pm_free_remove(s, index);
    if (from > e->page) {
        rest = pm_extent_cut(s, index, from - e->page);
        pm_free_insert(s, index, PM_EXTENT_RECLAIMED);
        if (!rest)
            return false;
        e = &pm_extents[index = rest];
    }
    if (to < e->page + e->pages) {
        rest = pm_extent_cut(s, index, to - e->page);
        if (rest)
            pm_free_insert(s, rest, PM_EXTENT_RECLAIMED);
    }
    // If the space cannot be released, the extent becomes the newest, so that others are tried
    // before it.
    if (!rest || !pm_heap_release_space(from << PM_PAGE_SHIFT, (to - from) << PM_PAGE_SHIFT)) {
        pm_free_coalesce(s, index, PM_EXTENT_RECLAIMED);
        return false;
    }
    e->zero = pm_heap_released_is_zero();
    e->backed = 0;
    uint32_t merged = pm_free_coalesce(s, index, PM_EXTENT_RETAINED);
    if (!waits() || pm_extents[merged].pages > ahead(s) / 2) // the heap may grow again
        pm_frontier_shrink(s, merged);
    return true;
}

void pm_extent_purge_to(struct pm_shard *s, uint64_t limit) {
    struct pm_shard_extents *x = s->extents;
    bool good = true;
    while (good && x->reclaimed.pages > limit) {
        const struct pm_extent *e = &pm_extents[x->oldest];
        good = purge_part(s, x->oldest, e->page, e->page + e->pages);
    }
}

// Largest first, because punching a hole costs the same whatever its length: on some disks 10 ms
// (mounted with `discard`, without a journal).
static void purge_largest(struct pm_shard *s, uint64_t until) {
    uint32_t index;
    while ((index = pm_free_largest(&s->extents->reclaimed)) && pm_os_now_ms() < until) {
        const struct pm_extent *e = &pm_extents[index];
        if (!purge_part(s, index, e->page, e->page + e->pages))
            return;
    }
}

// Releases whole units of reclaimed extents, oldest first. A hole in a part of a unit would take
// the 2 MiB mapping from what is in use in that unit. So a part keeps its space until the whole
// unit is free or space is short. An extent without a whole unit becomes the newest; after `tries`
// of them in a row the search ends.
static void purge_units(struct pm_shard *s, uint64_t limit, uint32_t tries, uint64_t until) {
    struct pm_shard_extents *x = s->extents;
    uint64_t unit = pm_heap_unit() >> PM_PAGE_SHIFT;
    uint32_t first = 0; // the first of the extents in a row that had no whole unit
    bool good = true;
    for (uint32_t left = tries;
         good && left && x->reclaimed.pages > limit && pm_os_now_ms() < until;) {
        uint32_t index = x->oldest;
        const struct pm_extent *e = &pm_extents[index];
        uint64_t from = (e->page + unit - 1) & ~(unit - 1);
        uint64_t to = (e->page + e->pages) & ~(unit - 1);
        if (from < to) {
            good = purge_part(s, index, from, to);
            first = 0;
            left = tries;
        } else if (index == first) {
            return; // the row has come round: no reclaimed extent has a whole unit
        } else {
            pm_age_remove(s, index);
            pm_age_insert(s, index);
            first = first ? first : index;
            left--;
        }
    }
}

#define DECAY_TRIES 64u
#define DECAY_MS 25u // the longest that one call releases space; later calls go on
#define STANDING_STEPS (PM_DECAY_STEPS / 10u)

void pm_extent_decay_now(struct pm_shard *s) {
    struct pm_shard_extents *x = s->extents;
    uint64_t limit;
    if (!pm_decay_tick(&x->decay, pm_os_now_ms(), x->reclaimed.pages, &limit))
        return;
    pm_standing_end(s, STANDING_STEPS);
    purge_units(s, limit, DECAY_TRIES, pm_os_now_ms() + DECAY_MS);
}

static bool purge(struct pm_shard *s, bool all) {
    const struct pm_free_set *reclaimed = &s->extents->reclaimed;
    pm_lock(&s->lock);
    if (all)
        pm_standing_end(s, 0);
    uint64_t before = reclaimed->pages;
    if (all)
        purge_units(s, 0, UINT32_MAX, UINT64_MAX);
    else
        pm_extent_decay_now(s);
    bool gave = reclaimed->pages < before;
    pm_unlock(&s->lock);
    return gave;
}

bool pm_extent_purge(bool all) {
    bool gave = false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        gave |= purge(&pm_heap.shard[i], all);
    return gave;
}

void pm_extent_purge_some(void) {
    uint64_t until = pm_os_now_ms() + PM_PURGE_MS;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        pm_lock(&s->lock);
        if (pm_heap_unit() == PM_PAGE_SIZE)
            purge_largest(s, until);
        else
            purge_units(s, 0, UINT32_MAX, until);
        pm_unlock(&s->lock);
    }
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent.h"

#include "extent_set.h"
#include "options.h"

#define CHUNK_PAGES_MIN 16u // of space taken from the file system at once
#define CHUNK_PAGES_MAX 512u

// Whether any block was ever only reserved: from then on, what is taken must leave room for what is promised.
static bool promises;

// *known: whether the file system can say.
static bool room_for(uint64_t pages, bool *known) {
    uint64_t promised = (pm_active.pages + pm_reclaimed.pages) << PM_PAGE_SHIFT;
    return pm_heap_has_room(pages << PM_PAGE_SHIFT, promised, known);
}

static bool commit(const struct pm_extent *e, uint64_t pages) {
    bool known = true;
    return (!promises || room_for(pages, &known) || !known) &&
           pm_heap_commit(e->page << PM_PAGE_SHIFT, pages << PM_PAGE_SHIFT);
}

// A huge block is only promised, where the file system can say what it has.
static bool back_huge(const struct pm_extent *e, uint64_t pages) {
    bool known = false, room = false;
    if (pm_options.reserve.number == PM_RESERVE_LAZY) {
        if (e->state == PM_EXTENT_RECLAIMED)
            return true; // it was before
        room = room_for(pages, &known);
    }
    promises |= known;
    return known ? room : commit(e, pages);
}

// Makes sure that touching the first `pages` of an extent cannot fail. Space is taken from the file system in
// steps that grow with the heap; *pages becomes how much is backed now.
static bool back(struct pm_extent *e, uint64_t *pages) {
    uint64_t want = *pages, step = pm_active.pages / 4;
    if (want > PM_HUGE_PAGES)
        return back_huge(e, want);
    step = step < CHUNK_PAGES_MIN ? CHUNK_PAGES_MIN : 1ull << (63 - __builtin_clzll(step));
    step = step > CHUNK_PAGES_MAX ? CHUNK_PAGES_MAX : step;
    uint64_t end = (e->page + want + step - 1) & ~(step - 1); // so that huge pages can serve
    want = end - e->page < e->pages ? end - e->page : e->pages;
    if (commit(e, want)) {
        *pages = want;
        return true;
    }
    return commit(e, *pages);
}

// Carves `pages` aligned pages out of the free extent `index` and makes them active.
uint32_t pm_extent_carve(uint32_t index, uint64_t pages, uint64_t align) {
    struct pm_extent *e = &pm_extents[index];
    enum pm_extent_state state = (enum pm_extent_state)e->state;
    uint64_t first = (e->page + align - 1) & ~(align - 1);
    pm_free_remove(index);
    if (first > e->page) {
        uint32_t rest = pm_extent_cut(index, first - e->page);
        pm_free_insert(index, state);
        if (!rest)
            return 0;
        e = &pm_extents[index = rest];
    }
    uint64_t backed = pages;
    if (!e->backed && !back(e, &backed)) {
        pm_free_coalesce(index, state);
        return 0;
    }
    bool lazy = !e->backed && pages > PM_HUGE_PAGES && pm_options.reserve.number == PM_RESERVE_LAZY;
    if (e->pages > backed) {
        uint32_t rest = pm_extent_cut(index, backed);
        if (!rest) {
            pm_free_coalesce(index, state);
            return 0;
        }
        pm_free_coalesce(rest, state);
    }
    e->backed = !lazy;
    if (e->pages > pages) {
        uint32_t rest = pm_extent_cut(index, pages);
        if (!rest) {
            pm_free_coalesce(index, PM_EXTENT_RECLAIMED);
            return 0;
        }
        pm_free_coalesce(rest, PM_EXTENT_RECLAIMED);
    }
    e->state = PM_EXTENT_ACTIVE;
    e->log = PM_LOG_NOWHERE;
    pm_bounds_set(e, index);
    pm_active.pages += pages;
    pm_active.count++;
    return index;
}

// How far the frontier has to move until an aligned piece ends there, what is free before it counted in.
static uint64_t missing(uint64_t pages, uint64_t align) {
    uint64_t from = pm_heap.frontier >> PM_PAGE_SHIFT, to = from;
    const struct pm_extent *last = from ? &pm_extents[pm_page_extent[from - 1]] : NULL;
    if (last && last->state == PM_EXTENT_RETAINED)
        from = last->page;
    uint64_t end = ((from + align - 1) & ~(align - 1)) + pages;
    return end > to ? end - to : 1;
}

// What is kept for reuse although it does not fit what is asked for must not add up with what is taken instead.
#define KEPT_SHARE 2 // of the pages in use, one page in so many
#define KEPT_PAGES 1024u

static uint32_t take(uint64_t pages, uint64_t align) {
    uint32_t fit = pm_free_fit(&pm_reclaimed, pages, align);
    if (!fit) {
        pm_extent_purge_to(KEPT_PAGES + pm_active.pages / KEPT_SHARE);
        fit = pm_free_fit(&pm_retained, pages, align);
    }
    if (!fit && pm_frontier_grow(missing(pages, align)))
        fit = pm_free_fit(&pm_retained, pages, align);
    if (!fit && pm_frontier_grow(pages + align -
                                 1)) // the free end was too long to merge with what was added
        fit = pm_free_fit(&pm_retained, pages, align);
    return fit ? pm_extent_carve(fit, pages, align) : 0;
}

static uint32_t take_locked(uint64_t pages, uint64_t align_pages) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX || align_pages > PM_ENTRY_PAGES_MAX)
        return 0;
    pm_extent_decay();
    uint32_t index = take(pages, align_pages);
    if (!index && pm_reclaimed.pages) {
        // At the limit or on a full file system, what is kept for reuse may be what is missing.
        pm_extent_purge_to(0);
        index = take(pages, align_pages);
    }
    return index;
}

uint32_t pm_extent_take(uint64_t pages, uint64_t align_pages) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t index = take_locked(pages, align_pages);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index;
}

void pm_extent_free(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    pm_active.pages -= e->pages;
    pm_active.count--;
    if (e->slab)
        pm_active.slab_pages -= e->pages;
    e->slab = 0;
    e->zero = 0;
    pm_free_coalesce(index, PM_EXTENT_RECLAIMED);
}

static bool publish_locked(uint32_t index, bool slab) {
    struct pm_extent *e = &pm_extents[index];
    e->slab = slab;
    pm_active.slab_pages += slab ? e->pages : 0;
    e->log =
        pm_log_append(pm_entry_make(slab ? PM_ENTRY_SLAB : PM_ENTRY_EXTENT, e->page, e->pages));
    bool good = e->log != PM_LOG_NOWHERE;
    if (!good)
        pm_extent_free(index);
    else if (!slab)
        __atomic_store_n(&pm_tag[e->page << (PM_PAGE_SHIFT - PM_GRANULE_SHIFT)], PM_TAG_EXTENT,
                         __ATOMIC_RELAXED);
    return good;
}

bool pm_extent_publish(uint32_t index, bool slab) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    bool good = publish_locked(index, slab);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return good;
}

uint32_t pm_extent_allocate(uint64_t pages, uint64_t align_pages) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t index = take_locked(pages, align_pages);
    if (index && !publish_locked(index, false))
        index = 0;
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index;
}

static void release_locked(uint32_t index) {
    pm_log_end(&pm_extents[index].log);
    pm_extent_free(index);
    pm_extent_decay();
}

void pm_extent_release(uint32_t index) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    release_locked(index);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
}

// The extent whose block starts at `p`, 0 when there is none. The lock is held.
static uint32_t block_at(const void *p) {
    uint64_t granule = pm_granule(p);
    return granule < PM_GRANULES && pm_tag[granule] == PM_TAG_EXTENT
               ? pm_page_extent[granule >> (PM_PAGE_SHIFT - PM_GRANULE_SHIFT)]
               : 0;
}

uint32_t pm_extent_find(const void *p) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t index = block_at(p);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index;
}

bool pm_extent_free_block(const void *p) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t index = block_at(p);
    if (index) {
        pm_tag[pm_granule(p)] = PM_TAG_NONE;
        release_locked(index);
    }
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index != 0;
}

// ---- statistics --------------------------------------------------------------------------------------

bool pm_extent_each_active(pm_range_fn *fn, void *arg) {
    for (uint32_t i = 1; i < pm_extent_top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state == PM_EXTENT_ACTIVE &&
            !fn(e->page << PM_PAGE_SHIFT, (uint64_t)e->pages << PM_PAGE_SHIFT, arg))
            return false;
    }
    return true;
}

struct pm_extent_stats pm_extent_stats(void) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    struct pm_extent_stats stats = {pm_active.count, pm_active.pages, pm_active.slab_pages,
                                    pm_reclaimed.pages, pm_retained.pages};
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return stats;
}

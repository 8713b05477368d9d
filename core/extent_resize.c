// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Resizing in place, and its two entries in the log.
#include "extent_set.h"

// The resize under way: until its old entry is ended, two entries stand for one start.
static struct {
    uint64_t page;
    uint32_t old_pages;
    pm_log_pos old;
} resizing = {.page = UINT64_MAX};

void pm_extent_entry_moved(uint64_t entry, pm_log_pos to) {
    if (pm_entry_page(entry) == resizing.page && pm_entry_pages(entry) == resizing.old_pages)
        resizing.old = to;
    else
        pm_extents[pm_page_extent[pm_entry_page(entry)]].log = to;
}

// The log learns the new size before it forgets the old one. A crash between leaves two entries for one
// start; replay keeps the longer, and either is right, for the caller has not been answered yet.
static bool relog(struct pm_extent *e, uint32_t old_pages) {
    resizing.page = e->page;
    resizing.old_pages = old_pages;
    resizing.old = e->log;
    pm_log_pos fresh = pm_log_append(pm_entry_make(PM_ENTRY_EXTENT, e->page, e->pages));
    bool good = fresh != PM_LOG_NOWHERE;
    e->log = good ? fresh : resizing.old;
    if (good)
        pm_log_end(&resizing.old);
    resizing.page = UINT64_MAX;
    return good;
}

static bool shrink_active(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t old = e->pages;
    uint32_t tail = pm_extent_cut(index, pages);
    if (!tail)
        return false;
    pm_bounds_set(e, index);
    if (!relog(e, old)) {
        pm_header_drop(tail);
        pm_bounds_set(e, 0);
        e->pages = old;
        pm_bounds_set(e, index);
        return false;
    }
    pm_active.pages -= pm_extents[tail].pages;
    pm_extents[tail].zero = 0;
    pm_free_coalesce(tail, PM_EXTENT_RECLAIMED);
    return true;
}

// Takes `more` free pages from `page` on: a free extent, and the one behind it, which has the other state.
// Where both do not suffice and end at the frontier, it moves. False: nothing is held.
static bool annex(uint64_t page, uint64_t more, uint32_t part[2]) {
    part[0] = part[1] = 0;
    for (unsigned i = 0; i < 2 && more; i++) {
        bool end = page << PM_PAGE_SHIFT == pm_heap.frontier;
        uint32_t next = end ? 0 : pm_page_extent[page];
        const struct pm_extent *e = &pm_extents[next];
        if (next && e->state == PM_EXTENT_ACTIVE)
            break;
        bool last = end || (e->page + e->pages) << PM_PAGE_SHIFT == pm_heap.frontier;
        if (last && (end || (e->state == PM_EXTENT_RETAINED && e->pages < more))) {
            if (!pm_frontier_grow(end ? more : more - e->pages))
                break;
            next = pm_page_extent[page];
            e = &pm_extents[next];
        }
        uint64_t piece = e->pages < more ? e->pages : more;
        part[i] = pm_extent_carve(next, piece, 1);
        if (!part[i])
            break;
        page += piece;
        more -= piece;
    }
    if (!more)
        return true;
    for (unsigned i = 0; i < 2; i++)
        if (part[i])
            pm_extent_free(part[i]);
    return false;
}

static bool grow_active(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t old = e->pages, part[2];
    if (!annex(e->page + old, pages - old, part))
        return false;
    pm_bounds_set(e, 0);
    for (unsigned i = 0; i < 2; i++)
        if (part[i]) {
            pm_bounds_set(&pm_extents[part[i]], 0);
            pm_active.count--;
        }
    e->pages = (uint32_t)pages;
    pm_bounds_set(e, index);
    bool good = relog(e, old);
    if (!good) {
        pm_bounds_set(e, 0);
        e->pages = old;
        pm_bounds_set(e, index);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (!part[i])
            continue;
        if (good) {
            e->backed &= pm_extents[part[i]].backed;
            pm_header_drop(part[i]);
        } else {
            pm_active.count++;
            pm_extent_free(part[i]);
        }
    }
    return good;
}

bool pm_extent_resize(uint32_t index, uint64_t pages) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX)
        return false;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t have = pm_extents[index].pages;
    bool good =
        pages == have || (pages < have ? shrink_active(index, pages) : grow_active(index, pages));
    pm_extent_decay();
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return good;
}

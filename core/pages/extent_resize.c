// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_resize.h"

#include "extent_entry.h"
#include "extent_standing.h"
#include "extent_take.h"
#include "free_extents.h"
#include "frontier.h"

bool pm_extent_shrink(struct pm_shard *s, uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t old = e->pages;
    uint32_t tail = pm_extent_cut(s, index, pages);
    if (!tail)
        return false;
    pm_bounds_set(e, index);
    if (!pm_extent_relog(s, e, old)) {
        pm_header_drop(s, tail);
        pm_bounds_set(e, 0);
        e->pages = old;
        pm_bounds_set(e, index);
        return false;
    }
    s->extents->active.pages -= pm_extents[tail].pages;
    __atomic_store_n(&e->used, 0, __ATOMIC_RELEASE);
    pm_extents[tail].zero = 0;
    pm_free_coalesce(s, tail, PM_EXTENT_RECLAIMED);
    return true;
}

// Takes `more` free pages from `page` on. They may be in two free extents in a row, one reclaimed
// and one retained (two of one state would have merged). If these end at the frontier and are too
// short, the frontier moves. False: all of it is free again.
static bool annex(struct pm_shard *s, uint64_t page, uint64_t more, uint32_t part[2]) {
    part[0] = part[1] = 0;
    for (unsigned i = 0; i < 2 && more; i++) {
        bool end = page == pm_shard_end(s);
        uint32_t next = end ? 0 : *pm_page_extent(page);
        const struct pm_extent *e = &pm_extents[next];
        if (next && e->state != PM_EXTENT_RECLAIMED && e->state != PM_EXTENT_RETAINED)
            break;
        bool last = end || e->page + e->pages == pm_shard_end(s);
        if (last && (end || (e->state == PM_EXTENT_RETAINED && e->pages < more))) {
            if (!pm_frontier_grow(s, end ? more : more - e->pages))
                break;
            next = *pm_page_extent(page);
            e = &pm_extents[next];
        }
        uint64_t piece = e->pages < more ? e->pages : more;
        part[i] = pm_extent_carve(s, next, piece, 1);
        if (!part[i])
            break;
        page += piece;
        more -= piece;
    }
    if (!more)
        return true;
    for (unsigned i = 0; i < 2; i++)
        if (part[i])
            pm_extent_free(s, part[i]);
    return false;
}

// What stands behind the extent becomes free.
static void end_standing_behind(struct pm_shard *s, const struct pm_extent *e) {
    uint64_t end = e->page + e->pages;
    if (end < pm_shard_end(s) && pm_extents[*pm_page_extent(end)].stands)
        pm_standing_end(s, 0);
}

static bool grow_active(struct pm_shard *s, uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    end_standing_behind(s, e);
    struct pm_active *active = &s->extents->active;
    uint32_t old = e->pages, part[2];
    if (!annex(s, e->page + old, pages - old, part))
        return false;
    pm_bounds_set(e, 0);
    for (unsigned i = 0; i < 2; i++)
        if (part[i]) {
            pm_bounds_set(&pm_extents[part[i]], 0);
            active->count--;
        }
    e->pages = (uint32_t)pages;
    pm_bounds_set(e, index);
    bool good = pm_extent_relog(s, e, old);
    if (!good) {
        pm_bounds_set(e, 0);
        e->pages = old;
        pm_bounds_set(e, index);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (!part[i])
            continue;
        if (good) {
            e->used = 0;
            e->backed &= pm_extents[part[i]].backed;
            pm_header_drop(s, part[i]);
        } else {
            active->count++;
            pm_extent_free(s, part[i]);
        }
    }
    return good;
}

bool pm_extent_resize(uint32_t index, uint64_t pages) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX)
        return false;
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    uint32_t have = pm_extents[index].pages;
    bool good = pages == have ||
                (pages < have ? pm_extent_shrink(s, index, pages) : grow_active(s, index, pages));
    pm_extent_decay(s);
    pm_unlock(&s->lock);
    return good;
}

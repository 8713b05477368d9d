// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_room.h"

#include "extent_resize.h"
#include "media/backing/backing.h"

// As for a huge block: the file system has promised the space.
static bool empty(struct pm_shard *s, struct pm_extent *e, uint64_t used) {
    uint64_t from = (e->page + used) << PM_PAGE_SHIFT, len = (e->pages - used) << PM_PAGE_SHIFT;
    if (e->zero)
        return true;
    if (!pm_heap_vacate(from, len))
        return false;
    e->backed = 0;
    __atomic_store_n(&s->extents->promises, true, __ATOMIC_RELAXED);
    return true;
}

bool pm_extent_make_room(uint32_t index, uint64_t used) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    bool good = empty(s, e, used);
    if (good)
        __atomic_store_n(&e->used, (uint32_t)used, __ATOMIC_RELEASE);
    pm_unlock(&s->lock);
    return good;
}

bool pm_extent_use_room(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    bool fits = e->used && pages > e->used && pages <= e->pages;
    if (fits)
        __atomic_store_n(&e->used, pages == e->pages ? 0 : (uint32_t)pages, __ATOMIC_RELEASE);
    pm_unlock(&s->lock);
    return fits;
}

bool pm_extent_drop_room(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    bool gave = e->state == PM_EXTENT_ACTIVE && !e->slab && e->used && e->used < e->pages &&
                pm_extent_shrink(s, index, e->used);
    pm_unlock(&s->lock);
    return gave;
}

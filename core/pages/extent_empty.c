// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_empty.h"

#include "base/cancel.h"
#include "media/backing/heap_empty.h"

// The extent of the page; 0: there is none. From the page downward to the first one that the page
// map names.
static uint32_t holding(const struct pm_shard *s, uint64_t page) {
    uint32_t index = 0;
    for (uint64_t at = page; !index && at >= s->offset >> PM_PAGE_SHIFT; at--)
        index = *pm_page_extent(at);
    const struct pm_extent *e = &pm_extents[index];
    return index && page < e->page + e->pages ? index : 0;
}

static void empty_in(struct pm_shard *s, uint64_t page, uint64_t end) {
    while (page < end) {
        uint32_t index = holding(s, page);
        if (!index)
            return;
        const struct pm_extent *e = &pm_extents[index];
        uint64_t to = e->page + e->pages < end ? e->page + e->pages : end;
        bool keep = e->backed || e->slab;
        if (!keep) // what others ask for must leave room for this (extent_take.c)
            __atomic_store_n(&s->extents->promises, true, __ATOMIC_RELAXED);
        if (e->state == PM_EXTENT_ACTIVE)
            pm_heap_empty(page << PM_PAGE_SHIFT, (to - page) << PM_PAGE_SHIFT, keep);
        page = to;
    }
}

static void empty_shard(struct pm_shard *s, uint64_t from, uint64_t to) {
    bool nested = pm_nested();
    if (!nested)
        pm_lock(&s->lock);
    uint64_t end = s->offset + s->frontier < to ? s->offset + s->frontier : to;
    if (from < end && nested)
        pm_heap_empty(from, end - from, true);
    else if (from < end)
        empty_in(s, from >> PM_PAGE_SHIFT, end >> PM_PAGE_SHIFT);
    if (!nested)
        pm_unlock(&s->lock);
}

void pm_extent_empty(uint64_t offset, uint64_t len) {
    struct pm_cancel held = pm_cancel_hold();
    for (uint64_t at = offset, end = offset + len, next; at < end; at = next) {
        struct pm_shard *s = pm_shard_at(at);
        next = s->offset + pm_shard_reach() < end ? s->offset + pm_shard_reach() : end;
        if (pm_shard_number(s) < pm_heap.shards)
            empty_shard(s, at, next);
    }
    pm_cancel_release(held);
}

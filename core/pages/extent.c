// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent.h"

#include "base/decay.h"
#include "base/lazy_table.h"
#include "base/options.h"

#define INDICES (1ull << PM_INDEX_SHIFT) // of one shard

struct pm_extent *pm_extents;
struct pm_shard_extents pm_shard_extents[PM_SHARDS];

static void begin(unsigned shard, const struct pm_lazy_table *headers) {
    struct pm_shard_extents *x = &pm_shard_extents[shard];
    pm_heap.shard[shard].extents = x;
    x->headers = *headers;
    x->top = 1;
    x->unfinished_resize = PM_LOG_NOWHERE;
    pm_decay_init(&x->decay, pm_options.decay_ms.number);
}

// Only of the shards that this process has addresses for: each lies on a page of its own.
bool pm_extent_init(void) {
    struct pm_lazy_table headers[PM_SHARDS] = {{0}};
    uint64_t indices = pm_range / (PM_SHARD_RANGE / INDICES);
    bool good = pm_lazy_table_reserve(&headers[0], indices * sizeof *pm_extents);
    pm_extents = (struct pm_extent *)headers[0].map;
    pm_lazy_table_divide(headers, INDICES * sizeof *pm_extents);
    for (unsigned i = 0; i < PM_SHARDS && headers[i].reach; i++)
        begin(i, &headers[i]);
    for (unsigned i = 0; i < PM_SHARDS; i++)
        pm_lock_init(&pm_heap.shard[i].lock, PM_RANK_EXTENT);
    return good;
}

bool pm_extent_each_active(pm_range_fn *fn, void *arg) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (!fn(pm_extents[i].page << PM_PAGE_SHIFT, pm_extent_bytes(&pm_extents[i]), arg))
            return false;
    return true;
}

uint32_t pm_header_new(struct pm_shard *s, uint64_t page, uint64_t pages) {
    struct pm_shard_extents *x = s->extents;
    uint32_t index = x->spare;
    if (index)
        x->spare = pm_extents[index].next;
    else if (pm_lazy_table_need(&x->headers, (x->top + 1) * sizeof *pm_extents))
        index = pm_index_first(s) + x->top++;
    else
        return 0;
    pm_extents[index] = (struct pm_extent){.page = page, .pages = (uint32_t)pages};
    return index;
}

uint32_t pm_extent_cut(struct pm_shard *s, uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t tail = pm_header_new(s, e->page + pages, e->pages - pages);
    if (!tail)
        return 0;
    pm_extents[tail].backed = e->backed;
    pm_extents[tail].zero = e->zero;
    pm_bounds_set(e, 0);
    e->pages = (uint32_t)pages;
    return tail;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "behind.h"

#include <stddef.h>
#include <sys/mman.h>

#include "base/os.h"
#include "base/sizeclass.h"
#include "pages/extent.h"

// `longer` is the next one that is longer. What lies behind a block is further away, so of those
// up to there none is long enough, whether this one is or not.
struct pm_behind_large {
    uint64_t start, len;
    uint32_t longer;
};

// Counts them, and notes them where there is room for it.
static void note(struct pm_behind *b, const struct pm_extent *e) {
    uint64_t len = pm_extent_bytes(e);
    if (b->large)
        b->large[b->count] = (struct pm_behind_large){e->page << PM_PAGE_SHIFT, len, 0};
    b->longest = len > b->longest ? len : b->longest;
    b->count++;
}

static void note_all(struct pm_behind *b) {
    b->count = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint64_t end = pm_shard_end(s);
        for (uint64_t page = s->offset >> PM_PAGE_SHIFT; page < end;) {
            const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
            if (e->state == PM_EXTENT_ACTIVE && !e->slab)
                note(b, e);
            page = e->page + e->pages;
        }
    }
}

bool pm_behind_make(struct pm_behind *b) {
    *b = (struct pm_behind){0};
    if (!(pm_forms & PM_FORM_BEFORE))
        return true;
    b->frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    note_all(b);
    b->bytes = ((uint64_t)b->count + 1) * sizeof *b->large;
    b->large = pm_os_reserve(b->bytes);
    if (!b->large)
        return false;
    note_all(b);
    for (uint32_t i = b->count; i-- > 0;) {
        uint32_t next = i + 1;
        while (next < b->count && b->large[next].len <= b->large[i].len)
            next = b->large[next].longer;
        b->large[i].longer = next;
    }
    return true;
}

void pm_behind_drop(struct pm_behind *b) {
    if (b->large)
        munmap(b->large, b->bytes);
    b->large = NULL;
}

// The first one that begins behind the offset.
static uint32_t first_behind(const struct pm_behind *b, int64_t offset) {
    uint32_t from = 0, to = b->count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if ((int64_t)b->large[middle].start > offset)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

// The word may lie before the heap: then the offset is negative.
void pm_behind_each(const struct pm_behind *b, uint64_t word, pm_is_class_fn *is_class,
                    void *marker, pm_consider_fn *consider) {
    int64_t offset = (int64_t)(word - pm_base);
    if (offset >= (int64_t)b->frontier || offset + (int64_t)(b->longest + PM_SLAB_SIZE) < 0)
        return;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        uint64_t at = (uint64_t)offset + pm_classes[cls].size;
        if (at < b->frontier && is_class(at, cls))
            consider(marker, pm_base + at);
    }
    for (uint32_t i = first_behind(b, offset); i < b->count; i = b->large[i].longer) {
        uint64_t way = b->large[i].start - (uint64_t)offset;
        if (way > b->longest)
            return;
        if (way <= b->large[i].len)
            consider(marker, pm_base + b->large[i].start);
    }
}

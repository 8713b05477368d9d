// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "large_index.h"

#include <sys/mman.h>

#include "base/os.h"
#include "pages/extent.h"

static uint32_t *first_at;
static uint64_t end, bytes;

static void enter(uint32_t i) {
    const struct pm_extent *e = &pm_extents[i];
    uint64_t first = e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    uint64_t last = (e->page + e->pages - 1) << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    for (uint64_t stripe = first; stripe <= last; stripe++) {
        uint32_t old = first_at[stripe];
        if (!old || pm_extents[old].page > e->page)
            first_at[stripe] = i;
    }
}

bool pm_large_index_make(uint64_t frontier) {
    end = frontier;
    bytes = ((frontier >> PM_SLAB_SHIFT) + 1) * sizeof *first_at;
    first_at = pm_os_reserve(bytes);
    if (!first_at)
        return false;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (!pm_extents[i].slab)
            enter(i);
    return true;
}

// Goes on from the first of the stripe, also over free extents.
uint32_t pm_large_index_find(uint64_t offset) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    uint32_t i = first_at[offset >> PM_SLAB_SHIFT];
    while (i && pm_extents[i].page <= page) {
        const struct pm_extent *e = &pm_extents[i];
        uint64_t next = e->page + e->pages;
        if (page < next)
            return e->state == PM_EXTENT_ACTIVE && !e->slab ? i : 0;
        i = next << PM_PAGE_SHIFT < end ? *pm_page_extent(next) : 0;
    }
    return 0;
}

void pm_large_index_drop(void) {
    if (first_at)
        munmap(first_at, bytes);
    first_at = NULL;
}

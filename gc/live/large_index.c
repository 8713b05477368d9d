// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "large_index.h"

#include <sys/mman.h>

#include "base/os.h"
#include "pages/extent.h"

#define STRIPE_PAGES (PM_SLAB_SIZE >> PM_PAGE_SHIFT)

// By number from 1; 0: none. Few blocks begin in a stripe, and at most one lies around its start.
static struct pm_large *large;
static struct stripe { uint32_t begins, around; } * stripe;
static uint64_t bytes;

static void enter(uint32_t number, uint32_t extent) {
    const struct pm_extent *e = &pm_extents[extent];
    uint64_t first = e->page / STRIPE_PAGES, last = (e->page + e->pages - 1) / STRIPE_PAGES;
    large[number] = (struct pm_large){e->page, e->pages, extent, stripe[first].begins};
    stripe[first].begins = number;
    for (uint64_t s = first + 1; s <= last; s++)
        stripe[s].around = number;
}

static uint32_t count_large(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        count += !pm_extents[i].slab;
    return count;
}

bool pm_large_index_make(uint64_t frontier) {
    uint64_t stripes = (frontier >> PM_SLAB_SHIFT) + 1;
    uint32_t number = 0;
    bytes = stripes * sizeof *stripe + ((uint64_t)count_large() + 1) * sizeof *large;
    stripe = pm_os_reserve(bytes);
    if (!stripe)
        return false;
    large = (struct pm_large *)(void *)(stripe + stripes);
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (!pm_extents[i].slab)
            enter(++number, i);
    return true;
}

static bool has(uint32_t number, uint64_t page) {
    return page - large[number].page < large[number].pages;
}

const struct pm_large *pm_large_index_find(uint64_t offset) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    const struct stripe *s = &stripe[offset >> PM_SLAB_SHIFT];
    if (s->around && has(s->around, page))
        return &large[s->around];
    uint32_t i = s->begins;
    while (i && !has(i, page))
        i = large[i].next;
    return i ? &large[i] : NULL;
}

void pm_large_index_drop(void) {
    if (stripe)
        munmap(stripe, bytes);
    stripe = NULL;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_zero.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/inherited_filter.h"
#include "extent_take.h"
#include "media/backing/backing.h"
#include "media/backing/fixed.h"
#include "media/persist.h"

// Up to here stores are faster than a fault for each page, if most of them will be touched. libc
// gives longer blocks back to the kernel, whatever the program has freed before.
#define LEAST ((uint64_t)32 << 20)

#define SAMPLES 64u

// Some file systems write what is dirty before they punch a hole into it. So of a file on a disk
// only that is given back which is mostly not in memory. The pages looked at are at no regular
// distance, because what a program touches often is.
static bool is_mostly_in_memory(uint64_t offset, uint64_t len) {
    uint64_t pages = len >> PM_PAGE_SHIFT, at = 0;
    unsigned found = 0;
    if (pm_inherited_ends(PM_INHERITED_MINCORE))
        return false; // it takes longer then, and no space
    for (unsigned i = 0; i < SAMPLES; i++) {
        unsigned char in_memory = 1;
        at += 0x9e3779b97f4a7c15u;
        uint64_t page = (uint64_t)(((unsigned __int128)at * pages) >> 64);
        if (mincore(pm_heap_at(offset + (page << PM_PAGE_SHIFT)), 1, &in_memory) != 0)
            in_memory = 1;
        found += in_memory & 1u;
    }
    return found > SAMPLES - SAMPLES / 8;
}

// On media the pages are promised their space again, so the file system must be able to tell that
// it has room for all that was promised. A fixed medium keeps its space and has no holes. Its
// commits can say that pages are zeroes.
static bool may_give_back(struct pm_shard *s, uint64_t offset, uint64_t len) {
    if (!pm_heap_on_media())
        return true;
    if (pm_heap_is_fixed())
        return pm_heap_vacated_is_zero();
    return pm_reserve_is_lazy() && pm_extent_may_promise(s) &&
           (!pm_heap_shows_holes() || !pm_persist_waits() || !is_mostly_in_memory(offset, len));
}

static bool give_back(struct pm_shard *s, uint64_t offset, uint64_t len) {
    return may_give_back(s, offset, len) && pm_heap_vacate(offset, len);
}

// Of whole units; the ends are cleared.
bool pm_extent_zero(uint32_t index) {
    struct pm_shard *s = pm_shard_of_extent(index);
    struct pm_extent *e = &pm_extents[index];
    uint64_t start = e->page << PM_PAGE_SHIFT, end = start + pm_extent_bytes(e);
    uint64_t unit = pm_heap_unit(), from = (start + unit - 1) & ~(unit - 1), to = end & ~(unit - 1);
    if (e->zero || end - start < LEAST)
        return e->zero;
    int saved = errno;
    pm_lock(&s->lock);
    bool good = give_back(s, from, to - from);
    if (good) {
        e->backed &= pm_heap_is_fixed();
        e->zero = 1;
    }
    pm_unlock(&s->lock);
    errno = saved;
    if (good && from > start)
        pm_zero(pm_heap_at(start), from - start);
    if (good && end > to)
        pm_zero(pm_heap_at(to), end - to);
    return good;
}

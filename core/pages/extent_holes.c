// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_holes.h"

#include "extent_take.h"
#include "free_extents.h"
#include "frontier.h"
#include "media/backing/backing.h"
#include "media/backing/file_space.h"

// A run of neighbouring pages.
struct run {
    uint16_t pages;
    unsigned count;
    uint64_t offset, len; // bytes from pm_base
};

// The first run of `pages`, which are not empty.
static struct run first_run(const struct pm_extent *e, uint16_t pages) {
    unsigned first = (unsigned)__builtin_ctz(pages);
    unsigned count = (unsigned)__builtin_ctz(~((uint32_t)pages >> first));
    return (struct run){(uint16_t)(((1u << count) - 1) << first), count,
                        (e->page + first) << PM_PAGE_SHIFT, (uint64_t)count << PM_PAGE_SHIFT};
}

bool pm_extent_may_punch(void) {
    return pm_heap_unit() == PM_PAGE_SIZE && pm_heap_released_is_zero() &&
           (pm_heap_on_media() || pm_heap_state() == PM_HEAP_VOLATILE);
}

uint16_t pm_extent_punch(uint32_t index, uint16_t pages) {
    struct pm_shard *s = pm_shard_of_extent(index);
    struct pm_extent *e = &pm_extents[index];
    uint16_t done = 0;
    pm_lock(&s->lock);
    while (pages && pm_extent_may_punch()) {
        struct run run = first_run(e, pages);
        if (!pm_heap_release_space(run.offset, run.len))
            break;
        done |= run.pages;
        pages &= (uint16_t)~run.pages;
        e->backed = 0;
        e->holes = (uint16_t)(e->holes + run.count);
        s->extents->active.holes += run.count;
    }
    pm_unlock(&s->lock);
    return done;
}

// Pages that were not punched may have their space already, and blocks in use may lie on them. So
// each is asked for alone: a call that fails half way may take back what the pages before had.
static struct run next_to_back(const struct pm_extent *e, uint16_t pages, uint16_t punched) {
    return pages & punched ? first_run(e, pages & punched)
                           : first_run(e, (uint16_t)(pages & -pages));
}

static bool back_run(struct pm_shard *s, const struct run *run, bool punched) {
    if (!pm_heap_on_media())
        return true;
    return punched
               ? pm_extent_has_room(s, run->count) && pm_heap_allocate_space(run->offset, run->len)
               : pm_file_back_with_space(&s->data, run->offset - s->offset, run->len);
}

uint16_t pm_extent_back(uint32_t index, uint16_t pages, uint16_t punched) {
    struct pm_shard *s = pm_shard_of_extent(index);
    struct pm_extent *e = &pm_extents[index];
    uint16_t done = 0;
    pm_lock(&s->lock);
    while (pages) {
        struct run run = next_to_back(e, pages, punched);
        bool counted = run.pages & punched, good = back_run(s, &run, counted);
        if (!good && s->extents->reclaimed.pages) { // as pm_extent_take(): gives back what is kept
            pm_extent_purge_to(s, 0);
            good = back_run(s, &run, counted);
        }
        if (!good) {
            atomic_store_explicit(&pm_extent_short, true, memory_order_relaxed);
            break;
        }
        done |= run.pages;
        pages &= (uint16_t)~run.pages;
        e->holes = (uint16_t)(e->holes - (counted ? run.count : 0));
        s->extents->active.holes -= counted ? run.count : 0;
    }
    pm_extent_asked(s);
    pm_unlock(&s->lock);
    return done;
}

uint16_t pm_extent_renew(uint32_t index, uint16_t pages, uint16_t punched) {
    struct pm_shard *s = pm_shard_of_extent(index);
    uint16_t done = 0;
    pm_lock(&s->lock);
    while (pages) {
        struct run run = first_run(&pm_extents[index], pages);
        if (!pm_heap_release_space(run.offset, run.len))
            break;
        done |= run.pages;
        pages &= (uint16_t)~run.pages;
    }
    uint16_t counted = (uint16_t)__builtin_popcount(done & punched);
    pm_extents[index].holes = (uint16_t)(pm_extents[index].holes - counted);
    s->extents->active.holes -= counted;
    pm_unlock(&s->lock);
    return done;
}

unsigned pm_extent_some_slabs(uint32_t *index, uint32_t headers, uint32_t *slabs, unsigned max) {
    struct pm_shard *s = pm_shard_of_extent(*index);
    unsigned found = 0, next = pm_shard_number(s) + 1;
    pm_lock(&s->lock);
    uint32_t first = pm_index_first(s), top = first + s->extents->top;
    *index += *index == first; // it stands for no extent, and need not be there
    uint32_t end = top - *index < headers ? top : *index + headers;
    for (; *index < end && found < max; ++*index)
        if (pm_extents[*index].state == PM_EXTENT_ACTIVE && pm_extents[*index].slab)
            slabs[found++] = pm_extent_slab(&pm_extents[*index]);
    if (*index >= top)
        *index = next < pm_heap.shards ? pm_index_first(&pm_heap.shard[next]) : 0;
    pm_unlock(&s->lock);
    return found;
}

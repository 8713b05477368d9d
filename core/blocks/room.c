// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "room.h"

#include <stdatomic.h>
#include <string.h>

#include "base/options.h"
#include "extent_cache.h"
#include "media/backing/fixed.h"
#include "media/open/shard_nodes.h"
#include "pages/extent_resize.h"
#include "pages/extent_room.h"

#define LEAST ((size_t)256 << 10) // a smaller block moves
#define TIMES 4u                  // what a block and its room have together, of the block
#define LIMIT_SHARE 2u            // of the heap's limit; the rest is for those who use it

static _Atomic bool any_room; // there may be some

// Space on a fixed medium is space, and under PMALLOC_RESERVE=strict each page gets its own.
static bool has_addresses(void) {
    enum pm_heap_state state = pm_heap_state();
    bool serves = state == PM_HEAP_VOLATILE || pm_heap_on_media();
    return serves && pm_reserve_is_lazy() && pm_options.shard.number == PM_SHARD_RANGE &&
           pm_range >= PM_SHARD_RANGE;
}

static bool fits(uint64_t bytes) {
    return atomic_load_explicit(&pm_heap.length, memory_order_relaxed) + bytes <=
           pm_heap.limit / LIMIT_SHARE;
}

// The collector would take what is left there for pointers.
static void clear_end(char *p, size_t size) {
    size_t rest = -size & (PM_PAGE_SIZE - 1);
    pm_heap_scrub(p + size, rest);
}

// One extent with the room, or, if what it had before cannot be cleared, without.
static void *take(size_t size, uint64_t pages) {
    uint64_t used = (size + PM_PAGE_SIZE - 1) >> PM_PAGE_SHIFT;
    uint32_t index = pm_extent_cache_allocate(pm_node_mine(), pages, PM_HUGE_PAGES);
    if (!index)
        return NULL;
    bool zero = pm_extents[index].zero;
    char *p = pm_extent_address(&pm_extents[index]);
    if (!pm_extent_make_room(index, used) && !pm_extent_resize(index, used))
        pm_heap_scrub(p + size, (pages - used) << PM_PAGE_SHIFT);
    if (!zero)
        clear_end(p, size);
    atomic_store_explicit(&any_room, true, memory_order_relaxed);
    return p;
}

void *pm_room_alloc(size_t old, size_t size) {
    if (size < LEAST || size <= old || size - old > old / 2 || !has_addresses())
        return NULL;
    for (uint64_t times = TIMES; times > 1; times /= 2) {
        uint64_t pages = (size * times) >> PM_PAGE_SHIFT;
        pages = pages > PM_HUGE_PAGES ? pages : PM_HUGE_PAGES + 1;
        void *p = fits(pages << PM_PAGE_SHIFT) ? take(size, pages) : NULL;
        if (p)
            return p;
    }
    return NULL;
}

bool pm_room_take_back(void) {
    bool gave = false;
    if (!atomic_exchange_explicit(&any_room, false, memory_order_relaxed))
        return false;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].used)
            gave |= pm_extent_drop_room(i);
    return gave;
}

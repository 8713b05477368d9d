// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_set.h"

#include "decay.h"
#include "options.h"
#include "table.h"

#define MAX_EXTENTS (uint32_t)(pm_range / 16384)
#define CANDIDATES 16 // looked at per list for one that fits alignment

struct pm_extent *pm_extents;
uint32_t pm_extent_top;
struct pm_lock pm_extent_lock;
struct pm_free_set pm_reclaimed, pm_retained;
uint32_t pm_oldest_reclaimed;
struct pm_active pm_active;

static uint32_t newest; // reclaimed, by time
static uint32_t spare;  // unused headers, through `next`

// ---- headers -----------------------------------------------------------------------------------------

static struct pm_table headers;

bool pm_extent_init(void) {
    bool good = pm_table_reserve(&headers, MAX_EXTENTS * sizeof *pm_extents);
    pm_extents = (struct pm_extent *)headers.map;
    pm_extent_top = 1;
    pm_decay_init(pm_options.decay_ms.number);
    pm_log_moved = pm_extent_entry_moved;
    return good;
}

uint32_t pm_header_new(uint64_t page, uint64_t pages) {
    uint32_t index = spare;
    if (index)
        spare = pm_extents[index].next;
    else if (pm_table_need(&headers, (pm_extent_top + 1) * sizeof *pm_extents))
        index = pm_extent_top++;
    else
        return 0;
    pm_extents[index] = (struct pm_extent){.page = page, .pages = (uint32_t)pages};
    return index;
}

void pm_header_drop(uint32_t index) {
    pm_extents[index].state = PM_EXTENT_UNUSED;
    pm_extents[index].next = spare;
    spare = index;
}

void pm_bounds_set(const struct pm_extent *e, uint32_t value) {
    pm_page_extent[e->page] = value;
    pm_page_extent[e->page + e->pages - 1] = value;
}

// ---- free sets ---------------------------------------------------------------------------------------

// The list that an extent of `pages` belongs to; its first list whose members all hold `pages`, when
// `pages` is a size that pm_large_pages() gives.
static unsigned list_of(uint64_t pages) {
    if (pages < 8)
        return (unsigned)pages;
    unsigned top = 63u - (unsigned)__builtin_clzll(pages);
    return (top - 2) * 8 + (unsigned)(pages >> (top - 3) & 7);
}

static struct pm_free_set *set_of(const struct pm_extent *e) {
    return e->state == PM_EXTENT_RECLAIMED ? &pm_reclaimed : &pm_retained;
}

void pm_age_insert(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    e->older = newest;
    e->newer = 0;
    *(newest ? &pm_extents[newest].newer : &pm_oldest_reclaimed) = index;
    newest = index;
}

void pm_age_remove(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    *(e->older ? &pm_extents[e->older].newer : &pm_oldest_reclaimed) = e->newer;
    *(e->newer ? &pm_extents[e->newer].older : &newest) = e->older;
}

void pm_free_insert(uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    e->state = (uint8_t)state;
    struct pm_free_set *set = set_of(e);
    unsigned list = list_of(e->pages);
    e->prev = 0;
    e->next = set->head[list];
    if (e->next)
        pm_extents[e->next].prev = index;
    set->head[list] = index;
    set->some[list / 64] |= 1ull << list % 64;
    set->pages += e->pages;
    pm_bounds_set(e, index);
    if (state == PM_EXTENT_RECLAIMED)
        pm_age_insert(index);
}

void pm_free_remove(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_free_set *set = set_of(e);
    unsigned list = list_of(e->pages);
    *(e->prev ? &pm_extents[e->prev].next : &set->head[list]) = e->next;
    if (e->next)
        pm_extents[e->next].prev = e->prev;
    if (!set->head[list])
        set->some[list / 64] &= ~(1ull << list % 64);
    set->pages -= e->pages;
    if (e->state == PM_EXTENT_RECLAIMED)
        pm_age_remove(index);
}

static unsigned next_list(const struct pm_free_set *set, unsigned from) {
    for (unsigned word = from / 64; word < sizeof set->some / sizeof set->some[0]; word++) {
        uint64_t bits = set->some[word];
        if (word == from / 64)
            bits &= ~0ull << from % 64;
        if (bits)
            return word * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return PM_SIZE_LISTS;
}

// Best fit: the lowest size list with an extent that holds `pages` from an aligned page on.
uint32_t pm_free_fit(const struct pm_free_set *set, uint64_t pages, uint64_t align) {
    for (unsigned list = list_of(pages); (list = next_list(set, list)) < PM_SIZE_LISTS; list++) {
        unsigned tries = CANDIDATES;
        for (uint32_t i = set->head[list]; i && tries--; i = pm_extents[i].next) {
            const struct pm_extent *e = &pm_extents[i];
            uint64_t first = (e->page + align - 1) & ~(align - 1);
            if (first + pages <= e->page + e->pages)
                return i;
        }
    }
    return 0;
}

// Inserts a free extent, merged with neighbours of the same state. Returns the merged extent.
uint32_t pm_free_coalesce(uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t end = e->page + e->pages;
    uint32_t before = e->page ? pm_page_extent[e->page - 1] : 0;
    uint32_t after = end << PM_PAGE_SHIFT < pm_heap.frontier ? pm_page_extent[end] : 0;
    uint32_t sides[2] = {before, after};
    for (unsigned i = 0; i < 2; i++) {
        struct pm_extent *side = &pm_extents[sides[i]];
        // A header cannot count more pages than an entry can.
        if (!sides[i] || side->state != state ||
            (uint64_t)side->pages + e->pages > PM_ENTRY_PAGES_MAX)
            continue;
        pm_free_remove(sides[i]);
        pm_bounds_set(side, 0);
        pm_bounds_set(e, 0);
        if (side->page < e->page)
            e->page = side->page;
        e->pages += side->pages;
        e->backed &= side->backed;
        e->zero &= side->zero;
        pm_header_drop(sides[i]);
    }
    pm_free_insert(index, state);
    return index;
}

// Cuts [page + pages, end) off an extent that is in no list; the tail gets the same flags.
uint32_t pm_extent_cut(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t tail = pm_header_new(e->page + pages, e->pages - pages);
    if (!tail)
        return 0;
    pm_extents[tail].backed = e->backed;
    pm_extents[tail].zero = e->zero;
    pm_bounds_set(e, 0);
    e->pages = (uint32_t)pages;
    return tail;
}

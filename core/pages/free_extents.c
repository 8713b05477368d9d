// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "free_extents.h"

#define CANDIDATES 16 // extents tried in each list, because alignment may rule some out

static struct pm_free_set *set_of(struct pm_shard_extents *x, const struct pm_extent *e) {
    return e->state == PM_EXTENT_RECLAIMED ? &x->reclaimed : &x->retained;
}

static inline void age_insert(struct pm_shard_extents *x, struct pm_extent *e, uint32_t index) {
    e->older = x->newest;
    e->newer = 0;
    *(x->newest ? &pm_extents[x->newest].newer : &x->oldest) = index;
    x->newest = index;
}

static inline void age_remove(struct pm_shard_extents *x, const struct pm_extent *e) {
    *(e->older ? &pm_extents[e->older].newer : &x->oldest) = e->newer;
    *(e->newer ? &pm_extents[e->newer].older : &x->newest) = e->older;
}

void pm_age_insert(struct pm_shard *s, uint32_t index) {
    age_insert(s->extents, &pm_extents[index], index);
}

void pm_age_remove(struct pm_shard *s, uint32_t index) {
    age_remove(s->extents, &pm_extents[index]);
}

void pm_free_insert(struct pm_shard *s, uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    e->state = (uint8_t)state;
    struct pm_shard_extents *x = s->extents;
    struct pm_free_set *set = set_of(x, e);
    unsigned list = pm_size_list(e->pages);
    e->prev = 0;
    e->next = set->head[list];
    if (e->next)
        pm_extents[e->next].prev = index;
    set->head[list] = index;
    set->some[list / 64] |= 1ull << list % 64;
    set->pages += e->pages;
    pm_bounds_set(e, index);
    if (state == PM_EXTENT_RECLAIMED)
        age_insert(x, e, index);
}

void pm_free_remove(struct pm_shard *s, uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_shard_extents *x = s->extents;
    struct pm_free_set *set = set_of(x, e);
    unsigned list = pm_size_list(e->pages);
    *(e->prev ? &pm_extents[e->prev].next : &set->head[list]) = e->next;
    if (e->next)
        pm_extents[e->next].prev = e->prev;
    if (!set->head[list])
        set->some[list / 64] &= ~(1ull << list % 64);
    set->pages -= e->pages;
    if (e->state == PM_EXTENT_RECLAIMED)
        age_remove(x, e);
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

uint32_t pm_free_largest(const struct pm_free_set *set) {
    for (unsigned word = sizeof set->some / sizeof set->some[0]; word-- > 0;)
        if (set->some[word])
            return set->head[word * 64 + 63u - (unsigned)__builtin_clzll(set->some[word])];
    return 0;
}

uint32_t pm_free_fit(const struct pm_free_set *set, uint64_t pages, uint64_t align) {
    for (unsigned list = pm_size_list(pages); (list = next_list(set, list)) < PM_SIZE_LISTS;
         list++) {
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

// An extent can be no longer than what an entry of the log can say.
static inline void merge(struct pm_shard *s, struct pm_extent *e, uint32_t neighbour,
                         enum pm_extent_state state) {
    struct pm_extent *other = &pm_extents[neighbour];
    if (!neighbour || other->state != state ||
        (uint64_t)other->pages + e->pages > PM_ENTRY_PAGES_MAX)
        return;
    pm_free_remove(s, neighbour);
    pm_bounds_set(other, 0);
    pm_bounds_set(e, 0);
    if (other->page < e->page)
        e->page = other->page;
    e->pages += other->pages;
    e->backed &= other->backed;
    e->zero &= other->zero;
    pm_header_drop(s, neighbour);
}

uint32_t pm_free_coalesce(struct pm_shard *s, uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t end = e->page + e->pages;
    uint32_t before = e->page % PM_SHARD_PAGES ? *pm_page_extent(e->page - 1) : 0;
    uint32_t after = end < pm_shard_end(s) ? *pm_page_extent(end) : 0;
    merge(s, e, before, state);
    merge(s, e, after, state);
    pm_free_insert(s, index, state);
    return index;
}

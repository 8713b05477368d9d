// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "free_extents.h"

_Static_assert(PM_SLAB_PAGES == 16, "as the lists that have twins");

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

// Whether no slab has room in an extent that is as long as one, or longer.
static bool is_crooked(const struct pm_extent *e) {
    uint64_t first = (e->page + PM_SLAB_PAGES - 1) & ~(uint64_t)(PM_SLAB_PAGES - 1);
    return e->pages >= PM_SLAB_PAGES && first + PM_SLAB_PAGES > e->page + e->pages;
}

uint32_t *pm_free_head(struct pm_free_set *set, const struct pm_extent *e) {
    unsigned list = pm_size_list(e->pages);
    return is_crooked(e) ? &set->crooked[list - PM_CROOKED_FIRST] : &set->head[list];
}

// After a change of the list that the extent belongs to.
static void note_list(struct pm_free_set *set, const struct pm_extent *e, const uint32_t *head) {
    unsigned list = pm_size_list(e->pages);
    uint64_t *some = head == &set->head[list] ? &set->some[list / 64] : &set->some_crooked;
    uint64_t bit = 1ull << list % 64;
    *some = *head ? *some | bit : *some & ~bit;
}

void pm_free_insert(struct pm_shard *s, uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    e->state = (uint8_t)state;
    struct pm_shard_extents *x = s->extents;
    struct pm_free_set *set = set_of(x, e);
    uint32_t *head = pm_free_head(set, e);
    e->prev = 0;
    e->next = *head;
    if (e->next)
        pm_extents[e->next].prev = index;
    *head = index;
    note_list(set, e, head);
    set->pages += e->pages;
    pm_bounds_set(e, index);
    if (state == PM_EXTENT_RECLAIMED)
        age_insert(x, e, index);
}

void pm_free_remove(struct pm_shard *s, uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    struct pm_shard_extents *x = s->extents;
    struct pm_free_set *set = set_of(x, e);
    uint32_t *head = pm_free_head(set, e);
    *(e->prev ? &pm_extents[e->prev].next : head) = e->next;
    if (e->next)
        pm_extents[e->next].prev = e->prev;
    note_list(set, e, head);
    set->pages -= e->pages;
    if (e->state == PM_EXTENT_RECLAIMED)
        age_remove(x, e);
}

static unsigned next_list(const struct pm_free_set *set, unsigned from, uint64_t crooked) {
    for (unsigned word = from / 64; word < sizeof set->some / sizeof set->some[0]; word++) {
        uint64_t bits = set->some[word] | (word ? 0 : crooked);
        if (word == from / 64)
            bits &= ~0ull << from % 64;
        if (bits)
            return word * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return PM_SIZE_LISTS;
}

uint32_t pm_free_largest(const struct pm_free_set *set) {
    for (unsigned word = sizeof set->some / sizeof set->some[0]; word-- > 0;) {
        uint64_t bits = set->some[word] | (word ? 0 : set->some_crooked);
        if (!bits)
            continue;
        unsigned list = word * 64 + 63u - (unsigned)__builtin_clzll(bits);
        return set->head[list] ? set->head[list] : set->crooked[list - PM_CROOKED_FIRST];
    }
    return 0;
}

static uint32_t fit_in(uint32_t i, uint64_t pages, uint64_t align) {
    for (; i; i = pm_extents[i].next) {
        const struct pm_extent *e = &pm_extents[i];
        uint64_t first = (e->page + align - 1) & ~(align - 1);
        if (first + pages <= e->page + e->pages)
            return i;
    }
    return 0;
}

// In a list above that of pages + align - 1 the first extent fits. Below, alignment may rule many
// out; for slabs their own lists do that beforehand.
uint32_t pm_free_fit(const struct pm_free_set *set, uint64_t pages, uint64_t align) {
    bool straight = pages >= PM_SLAB_PAGES && align >= PM_SLAB_PAGES;
    uint64_t crooked = straight ? 0 : set->some_crooked;
    uint32_t found = 0;
    for (unsigned list = pm_size_list(pages);
         !found && (list = next_list(set, list, crooked)) < PM_SIZE_LISTS; list++) {
        found = fit_in(set->head[list], pages, align);
        if (!found && list < 64 && crooked >> list & 1)
            found = fit_in(set->crooked[list - PM_CROOKED_FIRST], pages, align);
    }
    return found;
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

void pm_extent_free(struct pm_shard *s, uint32_t index) {
    struct pm_active *active = &s->extents->active;
    struct pm_extent *e = &pm_extents[index];
    active->pages -= e->pages;
    active->count--;
    if (e->slab)
        active->slab_pages -= e->pages;
    if (e->holes) { // nobody has promised space to them
        active->holes -= e->holes;
        s->extents->gaps_unpromised = true;
    }
    e->holes = 0;
    e->slab = 0;
    e->kind = PM_KIND_CONSERVATIVE;
    e->held = 0;
    e->stands = 0;
    e->zero = 0;
    pm_free_coalesce(s, index, PM_EXTENT_RECLAIMED);
}

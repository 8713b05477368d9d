// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "holes.h"

#include "base/bits.h"
#include "media/backing/backing.h"
#include "pages/extent_holes.h"

// The pages that block i touches.
static uint16_t pages_of(unsigned cls, unsigned i) {
    uint32_t first = i * pm_classes[cls].size, last = first + pm_classes[cls].size - 1;
    return (uint16_t)((2u << (last >> PM_PAGE_SHIFT)) - (1u << (first >> PM_PAGE_SHIFT)));
}

uint16_t pm_holes_used(const struct pm_vslab *v) {
    unsigned cls = v->size_class;
    uint16_t used = 0;
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++)
        if (!pm_bit(pm_free_bits(v), i))
            used |= pages_of(cls, i);
    return used;
}

// ---- handing out --------------------------------------------------------------------------------

bool pm_holes_spared(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    if (v->holes == UINT16_MAX)
        return false;
    PM_EACH_BIT(i, pm_free_bits(v), pm_slab_words(v->size_class))
    if (!(pages_of(v->size_class, i) & v->holes))
        return true;
    return false;
}

// Where stores stay in the process, a page without a block in use becomes fresh memory. The program
// may touch the other pages already.
static uint16_t back_private(const struct pm_vslab *v, uint16_t pages) {
    uint16_t used = pages & pm_holes_used(v);
    return used | pm_extent_renew(v->extent, pages & (uint16_t)~used, v->punched);
}

static bool back(uint32_t slab, uint16_t pages) {
    struct pm_vslab *v = &pm_vslabs[slab];
    bool private = !pm_heap_on_media() && pm_heap_state() != PM_HEAP_VOLATILE;
    uint16_t backed =
        private ? back_private(v, pages) : pm_extent_back(v->extent, pages, pages & v->punched);
    v->holes &= (uint16_t)~backed;
    v->punched &= (uint16_t)~backed;
    return backed == pages;
}

bool pm_holes_fill(uint32_t slab) { return back(slab, pm_vslabs[slab].holes); }

// A slab of small blocks fills page after page. To ask for each of them would take long: so one
// page gets its space, then four have it, then all.
static uint16_t and_some_more(const struct pm_vslab *v, uint16_t need) {
    unsigned backed = PM_SLAB_PAGES - (unsigned)__builtin_popcount(v->holes);
    unsigned more = pm_holes_punchable(v) ? 0 : 3 * backed;
    for (uint16_t rest = v->punched & (uint16_t)~need; rest && more; more--) {
        need |= rest & (uint16_t)-rest;
        rest &= (uint16_t)(rest - 1);
    }
    return need;
}

// Of the first `want` free blocks.
static uint16_t pages_for(const struct pm_vslab *v, unsigned want) {
    uint16_t need = 0;
    PM_EACH_BIT(i, pm_free_bits(v), pm_slab_words(v->size_class)) {
        if (want-- == 0)
            return need;
        need |= pages_of(v->size_class, i);
    }
    return need;
}

bool pm_holes_ready(uint32_t slab, unsigned want) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    if (pm_holes_spared(slab))
        return true;
    uint16_t need = pages_for(v, want);
    return need && (back(slab, and_some_more(v, need & v->holes)) || pm_holes_spared(slab));
}

static unsigned pop(uint32_t slab, void **blocks, unsigned want) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class, got = 0;
    PM_EACH_BIT(i, pm_free_bits(v), pm_slab_words(cls)) {
        if (got == want)
            return got;
        if (pages_of(cls, i) & v->holes)
            continue;
        pm_bit_clear(pm_free_bits(v), i);
        blocks[got++] = pm_slab_start(slab) + (size_t)i * pm_classes[cls].size;
    }
    return got;
}

unsigned pm_holes_pop(uint32_t slab, void **blocks, unsigned want) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned got = pop(slab, blocks, want);
    v->free_count = (uint16_t)(v->free_count - got);
    v->quiet = 0;
    return got;
}

// ---- punching -----------------------------------------------------------------------------------

unsigned pm_holes_punch(uint32_t slab, unsigned least) {
    struct pm_vslab *v = &pm_vslabs[slab];
    if (!pm_holes_punchable(v) || !pm_extent_may_punch())
        return 0;
    uint16_t pages = (uint16_t) ~(pm_holes_used(v) | v->punched);
    if ((unsigned)__builtin_popcount(pages) < least)
        return 0;
    uint16_t punched = pm_extent_punch(v->extent, pages);
    v->holes |= punched;
    v->punched |= punched;
    return (unsigned)__builtin_popcount(punched);
}

// ---- recovery -----------------------------------------------------------------------------------

bool pm_holes_found;

static void find_in(uint32_t slab, struct pm_written *known) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t start = (uint64_t)slab << PM_SLAB_SHIFT, end = start + PM_SLAB_SIZE, len;
    uint16_t data = 0;
    for (uint64_t at = start; at < end && (len = pm_heap_next_data(known, &at, end)) != 0;
         at += len) {
        unsigned first = (unsigned)((at - start) >> PM_PAGE_SHIFT);
        unsigned last = (unsigned)((at + len - 1 - start) >> PM_PAGE_SHIFT);
        data |= (uint16_t)((2u << last) - (1u << first));
    }
    v->holes = (uint16_t)~data;
    pm_holes_found |= v->holes != 0;
}

static void find_in_shard(const struct pm_shard *s, bool held) {
    uint64_t end = pm_shard_end(s);
    struct pm_written known = {0};
    for (uint64_t page = s->offset >> PM_PAGE_SHIFT; page < end;) {
        const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
        page = e->page + e->pages;
        pm_extent_prefetch(e);
        if (e->state != PM_EXTENT_ACTIVE || !e->slab)
            continue;
        const struct pm_vslab *v = &pm_vslabs[pm_extent_slab(e)];
        pm_slab_prefetch(pm_extent_slab(e));
        if (pm_holes_possible(v) && (!held || v->held))
            find_in(pm_extent_slab(e), &known);
    }
}

// By rising address, so that the file system goes over each file once.
void pm_holes_find(bool held) {
    pm_holes_found = false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        find_in_shard(&pm_heap.shard[i], held);
}

void pm_holes_suppose(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    if (pm_holes_possible(v) && pm_heap_shows_holes())
        v->holes = UINT16_MAX;
}

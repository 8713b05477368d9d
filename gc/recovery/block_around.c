// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "block_around.h"

#include "base/bits.h"
#include "blocks/population.h"
#include "mark_index.h"
#include "pages/extent.h"

static bool in_slab(uint64_t offset, bool held, struct pm_block *b) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT);
    struct pm_slab_block found;
    if (!pm_slab_find(&pm_vslabs[slab], (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &found))
        return false;
    b->size = pm_classes[found.cls].size;
    b->start = (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + found.index * b->size;
    b->alive = (held && !pm_vslabs[slab].held) || pm_bit(found.bits, found.index);
    return true;
}

// Where the bitmaps of a clean close stand in for marking, every large block is in use. Only the
// first page of an extent names it.
static bool in_extent(uint64_t offset, struct pm_block *b) {
    uint64_t page = offset >> PM_PAGE_SHIFT, first = pm_shard_at(offset)->offset >> PM_PAGE_SHIFT;
    while (page > first && !*pm_page_extent(page))
        page--;
    const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
    b->start = e->page << PM_PAGE_SHIFT;
    b->size = pm_extent_bytes(e);
    b->alive = true;
    return e->state == PM_EXTENT_ACTIVE && offset - b->start < b->size;
}

static bool in_large(uint64_t offset, struct pm_block *b) {
    if (!pm_marks.kind)
        return in_extent(offset, b);
    bool large = pm_marks.kind[offset >> PM_SLAB_SHIFT] >= PM_STRIPE_LARGE;
    const struct pm_large *l = large ? pm_mark_large_at(offset) : NULL;
    if (l)
        *b = (struct pm_block){l->page << PM_PAGE_SHIFT, (uint64_t)l->pages << PM_PAGE_SHIFT,
                               l->marked};
    return l;
}

// The block around an offset; where there is none, nothing is alive. If only what is held can die,
// all else is alive.
bool pm_block_around(uint64_t offset, bool held, struct pm_block *block) {
    const struct pm_block nothing = {offset & ~15ull, 16, held};
    const struct pm_shard *s = pm_shard_at(offset);
    *block = nothing;
    if (offset - s->offset >= s->frontier) {
        block->alive = false;
        return false;
    }
    bool found = pm_vslabs[offset >> PM_SLAB_SHIFT].size_class ? in_slab(offset, held, block)
                                                               : in_large(offset, block);
    if (!found)
        *block = nothing;
    return found;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "collectable.h"

#include "base/own_memory.h"
#include "blocks/alloc.h"
#include "blocks/arena.h"
#include "pages/extent.h"

uint8_t *pm_col, pm_col_mark = PM_COL_MARK;
struct pm_col_kind pm_col_kinds[PM_COL_KINDS];

bool pm_col_init(void) {
    if (!pm_col)
        pm_col = pm_own_reserve(PM_GRANULES);
    return pm_col != NULL;
}

static bool found(struct pm_col_block *block, uint64_t offset, size_t size) {
    uint8_t byte = *pm_col_of(offset);
    *block = (struct pm_col_block){pm_heap_at(offset), size, byte};
    return byte & PM_COL_OWNED;
}

// Pages between the first and the last of an extent have no entry. The owner of the block keeps it
// where it is, so going down to its first page needs no lock.
static bool find_large(uint64_t offset, struct pm_col_block *block) {
    for (uint64_t page = offset >> PM_PAGE_SHIFT;; page--) {
        uint32_t i = __atomic_load_n(pm_page_extent(page), __ATOMIC_RELAXED);
        if (i) {
            const struct pm_extent *e = &pm_extents[i];
            return e->state == PM_EXTENT_ACTIVE && !e->slab &&
                   offset >> PM_PAGE_SHIFT < e->page + e->pages &&
                   found(block, e->page << PM_PAGE_SHIFT, pm_extent_bytes(e));
        }
        if (page == 0)
            return false;
    }
}

// The tag of a block in use says its class, and belongs to who owns the block. What is around other
// addresses the slab says, and that may be morphing.
bool pm_col_find(const void *p, struct pm_col_block *block) {
    uint64_t offset = (uint64_t)((uintptr_t)p - (uintptr_t)pm_base);
    if (!pm_col || offset >= pm_range ||
        offset >> PM_PAGE_SHIFT >= pm_shard_end(pm_shard_at(offset)))
        return false;
    unsigned tag = offset % 16 ? PM_TAG_NONE : __atomic_load_n(pm_tag_at(p), __ATOMIC_RELAXED);
    if (pm_tag_is_cached(tag))
        return found(block, offset, pm_classes[pm_tag_class(tag)].size);
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT);
    struct pm_slab_block b;
    if (!pm_home_class(pm_slab_home(&pm_vslabs[slab])))
        return find_large(offset, block);
    if (!pm_arena_find(slab, (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &b))
        return false;
    uint32_t size = pm_classes[b.cls].size;
    return found(block, (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + (uint64_t)b.index * size, size);
}

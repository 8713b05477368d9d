// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "found.h"

#include <stdint.h>

#include "arena.h"
#include "base/cancel.h"
#include "base/fallback.h"
#include "base/options.h"
#include "pages/extent.h"
#include "pages/extent_take.h"
#include "population.h"
#include "slab.h"

unsigned pm_find_tag(const void *p) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES || !pm_tag)
        return PM_TAG_NONE;
    unsigned tag = __atomic_load_n(pm_tag_at(p), __ATOMIC_RELAXED);
    if (tag == PM_TAG_NONE) {
        // Read the tag again even if pm_arena_write_tags() did nothing. Another thread may have
        // written the tags meanwhile, under the same bin lock, so its stores are visible here.
        if (pm_nested())
            return PM_TAG_NONE;
        struct pm_cancel held = pm_cancel_hold();
        pm_arena_write_tags(pm_slab_of(p));
        pm_cancel_release(held);
        tag = __atomic_load_n(pm_tag_at(p), __ATOMIC_RELAXED);
    }
    return tag;
}

// The extent that starts there; 0: none does.
static uint32_t extent_at(const void *p) {
    if (pm_nested())
        return *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
    struct pm_cancel held = pm_cancel_hold();
    uint32_t index = pm_extent_find(p);
    pm_cancel_release(held);
    return index;
}

static struct pm_found large(const void *p) {
    uint32_t index = extent_at(p);
    if (!index)
        return (struct pm_found){.what = PM_NOTHING};
    return (struct pm_found){
        .what = PM_LARGE,
        .kind = (enum pm_kind)pm_extents[index].kind,
        .type = pm_kind_is_typed(pm_extents[index].kind) ? pm_extents[index].type : 0,
        .extent = index,
        .size = pm_extent_used(&pm_extents[index]) << PM_PAGE_SHIFT};
}

static struct pm_found of_kind(const void *p) {
    uint32_t slab = pm_slab_of(p);
    const struct pm_vslab *v = &pm_vslabs[slab];
    if (pm_home_class(pm_slab_home(v)) == 0)
        return large(p);
    if (pm_kind_is_pinned(v->kind)) // it does not morph: the tag says that a block starts there
        return (struct pm_found){.what = PM_SMALL,
                                 .kind = (enum pm_kind)v->kind,
                                 .type = v->type,
                                 .size = pm_classes[pm_home_class(pm_slab_home(v))].size};
    struct pm_slab_block block;
    if (!pm_arena_find(slab, (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1)), &block))
        return (struct pm_found){.what = PM_NOTHING};
    return (struct pm_found){.what = PM_SMALL,
                             .kind = (enum pm_kind)v->kind,
                             .type = v->type,
                             .size = pm_classes[block.cls].size};
}

struct pm_found pm_find(void *p) {
    if (pm_fallback_owns(p))
        return pm_fallback_is_block(p)
                   ? (struct pm_found){.what = PM_FALLBACK, .size = pm_fallback_size(p)}
                   : (struct pm_found){.what = PM_NOTHING};
    unsigned tag = pm_find_tag(p);
    if (pm_tag_is_class(tag))
        return (struct pm_found){.what = PM_SMALL, .size = pm_classes[tag].size};
    if (pm_tag_is_cached(tag))
        return (struct pm_found){.what = PM_SMALL,
                                 .kind = PM_KIND_POINTER_FREE,
                                 .size = pm_classes[pm_tag_class(tag)].size};
    return tag == PM_TAG_EXTENT ? large(p)
           : tag == PM_TAG_KIND ? of_kind(p)
                                : (struct pm_found){.what = PM_NOTHING};
}

// ---- bad pointers -------------------------------------------------------------------------------

static _Atomic uint64_t foreign_pointers;

// `p` is outside the heap's range, so PMAlloc never handed it out. Another allocator may have:
// unless PMALLOC_CHECK=strict, its memory is left alone.
static void foreign(const char *call, const void *p) {
    if (pm_options.check.number == PM_CHECK_STRICT)
        pm_abort(PM_EV_FOREIGN_POINTER, "%s(%p): the pointer is outside the heap", call, p);
    if (atomic_fetch_add_explicit(&foreign_pointers, 1, memory_order_relaxed) != 0)
        return;
    pm_event(PM_EV_FOREIGN_POINTER,
             "%s(%p): the pointer is outside the heap and is left alone; reported once", call, p);
}

static const char *what_is_wrong(const void *p) {
    if ((uintptr_t)p % 16)
        return "misaligned pointer";
    if (pm_fallback_owns(p))
        return "block is free already, or pointer into its middle";
    if (pm_heap_offset(p) >> PM_PAGE_SHIFT >= pm_shard_end(pm_shard_at(pm_heap_offset(p))))
        return "pointer into the heap's unused range";
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[pm_slab_of(p)], population);
    uint32_t offset = (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1));
    bool starts = false;
    for (unsigned i = 0; i < count; i++)
        starts |= offset % pm_classes[population[i].cls].size == 0;
    if (count)
        return starts ? "block is free already (double free?)"
                      : "pointer into the middle of a block";
    uint32_t extent = *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
    starts = extent && pm_extents[extent].page << PM_PAGE_SHIFT == pm_heap_offset(p);
    return starts || !extent ? "block is free already, or pointer into its middle"
                             : "pointer into the middle of a block";
}

void pm_misuse(const char *call, const void *p) {
    if (!pm_in_range(p) && !pm_fallback_owns(p)) {
        foreign(call, p);
        return;
    }
    if (pm_options.check.number == PM_CHECK_REPORT)
        pm_event(PM_EV_BAD_FREE, "%s(%p): %s; request ignored", call, p, what_is_wrong(p));
    else
        pm_abort(PM_EV_BAD_FREE, "%s(%p): %s", call, p, what_is_wrong(p));
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "ahead.h"

#include "pages/extent_group.h"
#include "pages/extent_take.h"

#define SLABS_MOST 16u   // of one class in a group
#define EXTENTS_MOST 32u // of one length in a group ...
#define PAGES_MOST 1024u // ... and their pages
#define ALWAYS 128u      // pages of the length that was asked for, however much is cached

static uint8_t doubled(uint8_t want, unsigned most) {
    unsigned twice = want ? 2u * want : 1;
    return (uint8_t)(twice < most ? twice : most);
}

// ---- slabs --------------------------------------------------------------------------------------

struct slabs {
    unsigned count;
    uint8_t cls[PM_GROUP_MAX];
    uint64_t locked; // by class: bins beside the one that has run out now
};

static void add_slabs(struct slabs *group, struct pm_bin *bin, unsigned cls) {
    bin->want = doubled(bin->want, SLABS_MOST);
    for (unsigned i = 0; i < bin->want && group->count < PM_GROUP_MAX; i++)
        group->cls[group->count++] = (uint8_t)cls;
}

// A bin that needed a second slab, and has no empty one, soon needs the next.
static bool has_run_out(const struct pm_bin *bin) {
    return __atomic_load_n(&bin->want, __ATOMIC_RELAXED) > 1 &&
           !__atomic_load_n(&bin->vacant, __ATOMIC_RELAXED);
}

// Other bins' locks are only tried (bin.h), and held until their slabs are made.
static void add_others(struct slabs *group, struct pm_arena *arena, unsigned but) {
    for (unsigned cls = 1; cls <= PM_CLASSES && group->count < PM_GROUP_MAX; cls++) {
        struct pm_bin *bin = &arena->bin[cls];
        if (cls == but || !has_run_out(bin) || !pm_trylock_raw(&bin->lock))
            continue;
        group->locked |= 1ull << cls;
        if (has_run_out(bin))
            add_slabs(group, bin, cls);
    }
}
_Static_assert(PM_CLASSES < 64, "a set of classes has 64 bits");

bool pm_ahead_slabs(struct pm_arena *arena, unsigned cls) {
    struct slabs group = {0};
    uint32_t slab[PM_GROUP_MAX];
    add_slabs(&group, &arena->bin[cls], cls);
    add_others(&group, arena, cls);
    unsigned made = pm_slab_create_group(group.cls, group.count, arena->number, arena->node, slab);
    for (unsigned i = 0; i < made; i++)
        pm_bin_add_empty(&arena->bin[group.cls[i]], slab[i]);
    for (; group.locked; group.locked &= group.locked - 1)
        pm_unlock_raw(&arena->bin[__builtin_ctzll(group.locked)].lock);
    return made != 0;
}

// ---- extents ------------------------------------------------------------------------------------

struct extents {
    unsigned count;
    uint16_t pages[PM_GROUP_MAX]; // of each
    uint64_t room;                // pages that may still be added
};

static uint64_t pages_of(unsigned list) {
    return list < 8 ? list : (uint64_t)(8 + list % 8) << (list / 8 - 1);
}

static void add_extents(struct extents *group, unsigned list, unsigned want) {
    uint64_t pages = pages_of(list);
    for (; want && group->count < PM_GROUP_MAX - 1 && pages <= group->room; want--) {
        group->pages[group->count++] = (uint16_t)pages;
        group->room -= pages;
    }
}

// Relaxed: threads of one arena may overwrite each other's `want`, which is an estimate.
static unsigned raise(struct pm_extent_cache *cache, unsigned list) {
    uint64_t most = PAGES_MOST / pages_of(list);
    uint8_t want = atomic_load_explicit(&cache->want[list], memory_order_relaxed);
    want = doubled(want, most < EXTENTS_MOST ? (unsigned)most : EXTENTS_MOST);
    atomic_store_explicit(&cache->want[list], want, memory_order_relaxed);
    return want;
}

static bool list_has_run_out(struct pm_extent_cache *cache, unsigned list) {
    return atomic_load_explicit(&cache->want[list], memory_order_relaxed) &&
           !(atomic_load_explicit(&cache->list[list], memory_order_relaxed) & PM_LIST_INDEX);
}

static void plan(struct extents *group, struct pm_extent_cache *cache, unsigned list) {
    uint64_t spare = pm_extent_cache_spare(cache);
    group->room = spare > ALWAYS ? spare : ALWAYS;
    add_extents(group, list, raise(cache, list) - 1);
    group->room = spare > ALWAYS ? group->room : 0;
    for (unsigned other = 1; other < PM_CACHED_LISTS; other++)
        if (other != list && list_has_run_out(cache, other))
            add_extents(group, other, raise(cache, other));
}

// The blocks that the extent will have end in its last two fifths (extent_cache.h). What they do
// not use of these shall be no pointers.
static void clear_end(const struct pm_extent *e) {
    size_t from = (size_t)e->pages * 3 / 5 << PM_PAGE_SHIFT;
    if (!e->zero)
        pm_zero((char *)pm_extent_address(e) + from, pm_extent_bytes(e) - from);
}

uint32_t pm_ahead_extents(struct pm_extent_cache *cache, unsigned node, uint64_t pages,
                          uint64_t align_pages) {
    struct extents group = {0};
    uint32_t index[PM_GROUP_MAX];
    index[0] = pm_extent_cache_take(node, pages, align_pages);
    if (!index[0])
        return 0;
    if (node == cache->node)
        plan(&group, cache, pm_size_list(pages));
    unsigned more = pm_extent_take_more(index[0], group.pages, group.count, 1, index + 1);
    for (unsigned i = 1; i <= more; i++)
        clear_end(&pm_extents[index[i]]);
    unsigned made = pm_extent_publish_group(index, more + 1, false);
    if (!made)
        return 0;
    pm_extent_cache_adopt(cache, index + 1, made - 1);
    pm_extent_set_tag(&pm_extents[index[0]]);
    return index[0];
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_group.h"

#include "extent_entry.h"
#include "extent_take.h"
#include "free_extents.h"
#include "frontier.h"

static uint32_t fit(const struct pm_shard_extents *x, uint64_t pages, uint64_t align) {
    uint32_t found = pm_free_fit(&x->reclaimed, pages, align);
    return found ? found : pm_free_fit(&x->retained, pages, align);
}

static bool grow_for(struct pm_shard *s, const uint16_t *pages, unsigned count, uint64_t align) {
    uint64_t sum = align - 1;
    for (unsigned i = 0; i < count; i++)
        sum += (pages[i] + align - 1) & ~(align - 1);
    return pm_frontier_grow(s, sum);
}

unsigned pm_extent_take_more(uint32_t beside, const uint16_t *pages, unsigned count,
                             uint64_t align_pages, uint32_t *taken) {
    struct pm_shard *s = pm_shard_of_extent(beside);
    bool grown = false;
    unsigned i = 0;
    pm_lock(&s->lock);
    for (; i < count; i++) {
        uint32_t found = fit(s->extents, pages[i], align_pages);
        if (!found && !grown && (grown = grow_for(s, pages + i, count - i, align_pages)))
            found = fit(s->extents, pages[i], align_pages);
        taken[i] = found ? pm_extent_carve(s, found, pages[i], align_pages) : 0;
        if (!taken[i])
            break;
    }
    pm_unlock(&s->lock);
    return i;
}

unsigned pm_extent_publish_group(const uint32_t *index, unsigned count, bool slab) {
    struct pm_shard *s = pm_shard_of_extent(index[0]);
    uint64_t entry[PM_GROUP_MAX];
    pm_log_pos pos[PM_GROUP_MAX];
    pm_lock(&s->lock);
    unsigned filled = 0;
    do { // there is at least one
        struct pm_extent *e = &pm_extents[index[filled]];
        e->slab = slab;
        s->extents->active.slab_pages += slab ? e->pages : 0;
        entry[filled] = pm_entry_of(slab, (enum pm_kind)e->kind, e->page, e->pages);
    } while (++filled < count);
    unsigned good = pm_log_append_group(s, entry, pos, count, pm_extent_entry_moved);
    for (unsigned i = 0; i < count; i++)
        if (i < good)
            pm_extents[index[i]].log = pos[i];
        else
            pm_extent_free(s, index[i]);
    pm_unlock(&s->lock);
    return good;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "used.h"

#include "base/bits.h"
#include "blocks/population.h"
#include "media/backing/backing.h"
#include "pages/extent.h"

static void each_in_slab(uint32_t slab, pm_piece_fn *fn, void *arg) {
    struct pm_population population[2];
    uint64_t used[PM_BITMAP_WORDS];
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned count = pm_slab_populations(v, population);
    for (unsigned p = 0; p < count && pm_kind_has_pointers(v->kind); p++) {
        uint64_t size = pm_classes[population[p].cls].size;
        pm_population_used(v, &population[p], used);
        PM_EACH_BIT(i, used, pm_slab_words(population[p].cls))
        pm_piece_pages((struct pm_piece){((uint64_t)slab << PM_SLAB_SHIFT) + i * size, size,
                                         population[p].cls, 0, size},
                       v->holes, fn, arg);
    }
}

static void each_in_large(const struct pm_extent *e, struct pm_written *known, pm_piece_fn *fn,
                          void *arg) {
    uint64_t block = e->page << PM_PAGE_SHIFT, size = pm_extent_bytes(e);
    uint64_t at = block, end = block + size, len;
    for (; (len = pm_heap_next_data(known, &at, end)) != 0; at += len)
        fn(&(struct pm_piece){block, size, 0, at - block, at - block + len}, arg);
}

void pm_used_each(const struct pm_shard *s, pm_piece_fn *fn, void *arg) {
    struct pm_written known = {0};
    for (uint32_t i = pm_index_first(s); (i = pm_extent_next_active_in(s, i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            each_in_slab(pm_extent_slab(e), fn, arg);
        else if (*pm_tag_at(pm_extent_address(e)) && pm_kind_has_pointers(e->kind))
            each_in_large(e, &known, fn, arg); // the sweep tags what is in use
    }
}

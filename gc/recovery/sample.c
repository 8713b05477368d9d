// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "sample.h"

#include "base/bits.h"
#include "blocks/population.h"
#include "mark_index.h"
#include "media/backing/backing.h"

void pm_piece_pages(struct pm_piece p, uint16_t holes, pm_piece_fn *fn, void *arg) {
    for (uint64_t at = p.block, end = p.block + p.size, to; at < end; at = to) {
        to = holes ? (at | (PM_PAGE_SIZE - 1)) + 1 : end;
        to = to < end ? to : end;
        p.from = at - p.block;
        p.to = to - p.block;
        if (!(holes >> ((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT) & 1))
            fn(&p, arg);
    }
}

static void each_in_slab(uint32_t slab, pm_piece_fn *fn, void *arg) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    if (!pm_kind_has_pointers(pm_vslabs[slab].kind))
        return;
    for (unsigned p = 0; p < count; p++) {
        uint64_t size = pm_classes[population[p].cls].size;
        for (unsigned i = 0; i < pm_classes[population[p].cls].blocks; i++)
            if (pm_bit(population[p].bits, i))
                pm_piece_pages((struct pm_piece){((uint64_t)slab << PM_SLAB_SHIFT) + i * size, size,
                                                 population[p].cls, 0, size},
                               pm_mark_holes(slab), fn, arg);
    }
}

// The part of large blocks that lies in a stripe.
static void each_in_large(uint64_t stripe, uint32_t number, struct pm_written *known,
                          pm_piece_fn *fn, void *arg) {
    uint64_t from = stripe << PM_SLAB_SHIFT, to = from + PM_SLAB_SIZE;
    for (; number < pm_marks.larges; number++) {
        const struct pm_large *large = &pm_marks.large[number];
        uint64_t block = large->page << PM_PAGE_SHIFT,
                 size = (uint64_t)large->pages << PM_PAGE_SHIFT;
        if (block >= to)
            return;
        uint64_t at = block > from ? block : from, end = block + size, len;
        end = end < to ? end : to;
        for (; large->marked && !large->pointer_free && at < end &&
               (len = pm_heap_next_data(known, &at, end)) != 0;
             at += len)
            fn(&(struct pm_piece){block, size, 0, at - block, at - block + len}, arg);
    }
}

bool pm_sample_each(uint64_t bytes, pm_piece_fn *fn, void *arg) {
    struct pm_written known = {0};
    uint64_t step = pm_marks.stripes / (bytes >> PM_SLAB_SHIFT) + 1;
    for (uint64_t stripe = 0; stripe < pm_marks.stripes; stripe += step) {
        uint32_t kind = pm_marks.kind[stripe];
        if (kind >= PM_STRIPE_LARGE)
            each_in_large(stripe, kind - PM_STRIPE_LARGE, &known, fn, arg);
        else if (kind)
            each_in_slab((uint32_t)stripe, fn, arg);
    }
    return step == 1;
}

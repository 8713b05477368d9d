// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "sweep.h"

#include <string.h>

#include "base/own_memory.h"
#include "blocks/population.h"
#include "collectable.h"
#include "pages/extent.h"

#define EIGHT(bits) ((bits)*0x0101010101010101ull)

// The slabs and large blocks with dead blocks, by their stripes of 64 KiB or their first pages.
static struct piece {
    uint64_t offset;
    uint32_t large; // bytes in pages; 0: a slab
} * pieces;
static uint64_t count, next;
static bool killing;

bool pm_sweep_begin(void) {
    if (!pieces)
        pieces = pm_own_reserve((pm_range >> PM_PAGE_SHIFT) * sizeof *pieces);
    return pieces != NULL;
}

static void count_live(struct pm_sweep_sum *sum, uint8_t byte, uint64_t size) {
    const struct pm_col_kind *kind = &pm_col_kinds[byte & PM_COL_KIND];
    if (kind->descriptor || kind->add_size)
        sum->composite += size;
    else
        sum->atomic += size;
}

static void turn(struct pm_sweep_sum *sum, uint8_t *byte, uint64_t size) {
    if (!(*byte & PM_COL_MORTAL))
        return;
    if (pm_col_marked(*byte)) {
        *byte ^= killing ? 0 : PM_COL_STATE;
        count_live(sum, *byte, size);
    } else if (killing) {
        *byte |= PM_COL_DEAD;
        sum->dead += size;
        sum->dead_blocks++;
    }
}

// Most bytes are 0.
static void turn_run(struct pm_sweep_sum *sum, uint8_t *bytes, uint64_t size) {
    uint64_t eight;
    for (unsigned i = 0; i < PM_TAG_RUN; i += 8) {
        memcpy(&eight, bytes + i, sizeof eight);
        for (eight &= EIGHT(PM_COL_MORTAL); eight; eight &= eight - 1)
            turn(sum, bytes + i + (unsigned)__builtin_ctzll(eight) / 8, size);
    }
}

// The rows of pm_col that a slab's blocks may use are so far apart.
static unsigned rows_of(uint32_t slab) {
    return pm_slab_stride(&pm_vslabs[slab]) >> PM_GRANULE_SHIFT;
}

// All blocks count with the size of the current class: old blocks of a morph are few.
static bool turn_slab(struct pm_sweep_sum *sum, uint32_t slab) {
    uint64_t dead = sum->dead_blocks, size = pm_classes[pm_vslabs[slab].size_class].size;
    for (unsigned row = 0, rows = rows_of(slab); row < PM_TAG_ROWS; row += rows)
        turn_run(sum, &pm_col[pm_tag_run(slab, row)], size);
    return sum->dead_blocks != dead;
}

struct pm_sweep_sum pm_sweep_list(bool kill) {
    struct pm_sweep_sum sum = {0};
    count = next = 0;
    killing = kill;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        uint64_t offset = e->page << PM_PAGE_SHIFT, before = sum.dead_blocks;
        if (e->slab) {
            if (turn_slab(&sum, pm_extent_slab(e)))
                pieces[count++] = (struct piece){offset, 0};
            continue;
        }
        turn(&sum, pm_col_of(offset), pm_extent_bytes(e));
        if (sum.dead_blocks != before)
            pieces[count++] = (struct piece){offset, e->pages};
    }
    if (!killing)
        pm_col_mark ^= PM_COL_STATE;
    return sum;
}

static bool is_dead(uint8_t byte) { return (byte & PM_COL_STATE) == PM_COL_DEAD; }

// A callback of the program's may free or mark other dead blocks. One that it does not let go is as
// a new one.
static uint64_t release_one(uint64_t offset, pm_sweep_fn *release) {
    uint8_t *at = pm_col_of(offset), byte = *at;
    const struct pm_col_kind *kind = &pm_col_kinds[byte & PM_COL_KIND];
    if (!is_dead(byte))
        return 0;
    if (kind->disclaim && kind->disclaim(pm_heap_at(offset))) {
        if (is_dead(*at))
            *at &= (uint8_t)~PM_COL_STATE;
        return 0;
    }
    *at = 0;
    release(pm_heap_at(offset), byte & PM_COL_KIND);
    return 1;
}

static uint64_t sweep_run(uint64_t first, uint64_t size, pm_sweep_fn *release) {
    uint64_t freed = 0, eight;
    for (uint64_t at = first; at < first + PM_TAG_RUN; at += 8) {
        memcpy(&eight, &pm_col[at], sizeof eight);
        for (eight &= eight << 1 & EIGHT(0x80); eight; eight &= eight - 1) { // PM_COL_DEAD
            uint64_t granule = pm_tag_granule(at + (uint64_t)__builtin_ctzll(eight) / 8);
            freed += size * release_one(granule << PM_GRANULE_SHIFT, release);
        }
    }
    return freed;
}

// The slab may morph, or be freed, by what is released: so it is looked at once.
static uint64_t sweep_slab(uint32_t slab, pm_sweep_fn *release) {
    uint64_t freed = 0, size = pm_classes[pm_vslabs[slab].size_class].size;
    for (unsigned row = 0, rows = rows_of(slab); row < PM_TAG_ROWS; row += rows)
        freed += sweep_run(pm_tag_run(slab, row), size, release);
    return freed;
}

bool pm_sweep(uint64_t bytes, pm_sweep_fn *release) {
    uint64_t freed = 0;
    while (next < count && freed < bytes) {
        struct piece p = pieces[next++];
        if (!p.large)
            freed += sweep_slab((uint32_t)(p.offset >> PM_SLAB_SHIFT), release);
        else
            freed += ((uint64_t)p.large << PM_PAGE_SHIFT) * release_one(p.offset, release);
    }
    return next < count;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tables.h"

#include "arena.h"
#include "media/backing/range.h"
#include "media/open/shard_make.h"
#include "morph.h"
#include "pages/extent.h"
#include "pages/pagemap.h"
#include "returns.h"
#include "slab.h"

static bool reserve(void) {
    return pm_pagemap_init() && pm_extent_init() && pm_slab_init() && pm_morph_init() &&
           pm_remote_init();
}

bool pm_tables_reserve(unsigned arenas, unsigned directories) {
    return pm_heap_choose_range(directories) && reserve() && pm_arenas_init(arenas);
}

int pm_tables_extend(struct pm_error *err) {
    unsigned most = pm_shards_most();
    unsigned want = pm_heap.shards < pm_heap.volumes ? pm_heap.volumes : pm_heap.shards;
    bool narrow = pm_range < PM_SHARD_RANGE; // there was no room for more
    if (narrow && pm_heap.shards <= most)
        return PM_OK;
    if (!narrow && !pm_heap_widen_range(want))
        return PM_OK;
    if (!narrow && reserve()) {
        pm_shards_limit(); // of the shards that may come
        return PM_OK;
    }
    return pm_fail(err, PM_OPERATIONAL,
                   "%s has %u data files, and this process has address space for %u; is "
                   "`ulimit -v` set? unset it",
                   pm_heap.dir, pm_heap.shards, most);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "range.h"

#include <sys/mman.h>

#include "base/nodes.h"
#include "base/options.h"
#include "media/heap.h"

#define RANGE_MIN ((uint64_t)16 << 20)

static bool has_room(size_t bytes) {
    void *probe = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED)
        return false;
    munmap(probe, bytes);
    return true;
}

// How many shards a heap may come to have under this limit: one in each directory, or more, and the
// last one of each node need not be full. And one in a directory that a tool adds while the program
// runs.
static uint64_t wanted_shards(unsigned directories, uint64_t limit) {
    uint64_t each = pm_options.shard.number;
    uint64_t count = limit / each + (limit % each != 0);
    count = (count < directories + 1 ? directories + 1 : count) + pm_nodes.count - 1;
    return count < PM_SHARDS ? count : PM_SHARDS;
}

bool pm_heap_choose_range(unsigned directories) {
    for (pm_range = wanted_shards(directories, pm_options.limit.number) << PM_SHARD_SHIFT;
         pm_range >= RANGE_MIN; pm_range /= 2) {
        // The tables take a little over a sixteenth. A quarter leaves room for the program, too.
        if (has_room(pm_range + pm_range / 4))
            return true;
    }
    return false;
}

// One more for each node that has none: a tool may have taken all to one node.
static uint64_t shards_with_missing(uint64_t shards) {
    uint32_t nodes = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        nodes |= 1u << pm_heap.shard[i].node;
    shards += pm_nodes.count - (unsigned)__builtin_popcount(nodes);
    return shards < PM_SHARDS ? shards : PM_SHARDS;
}

bool pm_heap_widen_range(unsigned shards) {
    uint64_t count = wanted_shards(pm_heap.volumes, pm_heap.limit),
             all = shards_with_missing(shards);
    uint64_t least = (uint64_t)shards << PM_SHARD_SHIFT, before = pm_range,
             wanted = (count > all ? count : all) << PM_SHARD_SHIFT;
    if (wanted > before && wanted > least && has_room(wanted + wanted / 4))
        pm_range = wanted;
    else if (least > before)
        pm_range = least;
    return pm_range > before;
}

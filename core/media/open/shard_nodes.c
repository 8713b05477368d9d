// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "shard_nodes.h"

#include "shard_make.h"

static _Atomic uint8_t home[PM_NODES_MAX]; // a node's home + 1; 0: not known yet

static bool has_shard(unsigned node) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (pm_heap.shard[i].node == node)
            return true;
    return false;
}

static unsigned nearest_with_shard(unsigned node) {
    for (unsigned turn = 1; turn < pm_nodes.count; turn++)
        if (has_shard(pm_node_near(node, turn)))
            return pm_node_near(node, turn);
    return pm_heap.shard[0].node;
}

static unsigned find_home(unsigned node) {
    struct pm_shard *first = &pm_heap.shard[0];
    pm_lock(&first->lock);
    unsigned found = has_shard(node) || pm_shard_make(node) ? node : nearest_with_shard(node);
    pm_unlock(&first->lock);
    home[node] = (uint8_t)(found + 1);
    return found;
}

unsigned pm_node_home(unsigned node) {
    uint8_t known = atomic_load_explicit(&home[node], memory_order_acquire);
    return known ? known - 1u : find_home(node);
}

struct pm_node_memory pm_node_memory(unsigned node) {
    if (pm_nodes.count == 1)
        return (struct pm_node_memory){0, pm_range};
    unsigned first = 0, count = pm_heap.shards;
    while (first < count && pm_heap.shard[first].node != node)
        first++;
    unsigned end = first;
    while (end < count && pm_heap.shard[end].node == node)
        end++;
    return (struct pm_node_memory){pm_heap.shard[first % PM_SHARDS].offset,
                                   (end - first) * pm_shard_reach()};
}

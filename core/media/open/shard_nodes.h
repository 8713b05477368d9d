// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which NUMA node's memory a shard is. Each node gets a shard of its own, when a thread of the node
// first needs memory. The number stands on media (pm_shard_state.node), so memory stays where it
// is. Where the machine has fewer nodes than the heap, shards of several nodes belong to one.
#ifndef PM_SHARD_NODES_H
#define PM_SHARD_NODES_H

#include "base/nodes.h"
#include "media/heap.h"

// Returns the node whose memory threads of `node` use: the same, or the nearest one that has a
// shard where it can have none. Makes the shard at the first call. No extent lock is held.
unsigned pm_node_home(unsigned node);

// Returns the home of the calling thread.
static inline unsigned pm_node_mine(void) {
    return pm_nodes.count == 1 ? 0 : pm_node_home(pm_node_look());
}

// Returns the node that the memory at an address of the heap belongs to.
static inline unsigned pm_node_of(const void *p) {
    return pm_nodes.count == 1 ? 0 : pm_shard_at(pm_heap_offset(p))->node;
}

// The addresses of a node's first shard, and of shards of the node right after it: a range of
// offsets. With one node: all addresses.
struct pm_node_memory {
    uint64_t offset, bytes;
};
struct pm_node_memory pm_node_memory(unsigned node);

#endif

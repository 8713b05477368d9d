// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What pmalloc-info --nodes prints: the machine's NUMA nodes, and for each data file its node, and
// where its pages lie.
#ifndef PM_TOOLS_NODES_PRINT_H
#define PM_TOOLS_NODES_PRINT_H

#include <stdint.h>

#include "media/heap.h"

struct node_shard {
    const char *file;
    unsigned node;   // of this machine
    int recorded;    // on media; -1: none
    uint64_t length; // bytes up to the last extent
    uint64_t pages;  // that have something
    uint64_t misplaced, unknown;
};

struct node_shards {
    unsigned count, nodes;
    unsigned machine; // nodes of the kernel's; if they are more, several are one of `nodes`
    struct node_shard shard[PM_SHARDS];
};

// Asks the kernel for every page of the open heap that was ever written.
void nodes_take(struct node_shards *out);
void nodes_text(const struct node_shards *n, const char *heap);
void nodes_json(const struct node_shards *n, const char *heap);

#endif

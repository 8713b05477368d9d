// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --to-node: a heap goes to the memory of one NUMA node. All of its data files
// belong to that node from then on. The kernel takes pages in memory there, one by one; a data file
// on the device of another node goes to a directory of the heap on a device of the node (files_go).
// No step changes what the heap contains, so a kill at any instant leaves a heap that opens.
#ifndef PM_TOOLS_TO_NODE_H
#define PM_TOOLS_TO_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "base/node_groups.h"
#include "json.h"

#define TO_NODE_MOST (PM_KERNEL_NODES - 1)

struct to_node {
    bool wanted;          // else the functions below do only what every recovery does
    unsigned id;          // the kernel's number
    unsigned files;       // data files that went to another directory
    uint64_t bytes;       // of all pages in memory
    uint64_t moved_bytes; // of those that lay on other nodes
};

// Before the heap is opened: finds the nodes, so that the threads of a recovery each stay on one.
// PM_USAGE: the machine does not have that one.
int to_node_check(const struct to_node *t, struct pm_error *err);
// The heap is open, and nothing has been written. Each data file's node becomes this one, on media
// with pm_heap_dirty(). PM_OPERATIONAL: the heap cannot go there.
int to_node_begin(const struct to_node *t, struct pm_error *err);
// After the heap was closed, while this process holds its lock. Removes what a kill has left.
int to_node_go(struct to_node *t, struct pm_error *err);
void to_node_json(struct json *j, const struct to_node *t);
void to_node_text(const struct to_node *t);

#endif

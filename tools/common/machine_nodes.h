// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The NUMA nodes of this machine, by libnuma: which there are, how far apart they are, where a page
// lies, and how it is moved. A node has the kernel's number here, as numactl(8) prints it. What
// core/base/nodes.h calls a node is one with processor cores, or a group of them.
//
// The preloaded library does without libnuma, which would be one more library in every process. So
// it reads what it needs itself. Its code are the threads of a recovery, too: they bind themselves.
#ifndef PM_TOOLS_MACHINE_NODES_H
#define PM_TOOLS_MACHINE_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

struct machine_node {
    unsigned id, cores;
    uint64_t bytes, free; // of memory
};

// Finds out what pm_nodes says, as a program's start does; before the heap is opened. A test may
// set PMALLOC_TOPOLOGY.
int machine_nodes_find(struct pm_error *err);
// One more than the highest number of a node; 0: the kernel does not tell.
unsigned machine_nodes_end(void);
// False: there is no such node.
bool machine_node_look(unsigned id, struct machine_node *out);
// 10: the same node; 0: not known.
unsigned machine_nodes_distance(unsigned id, unsigned other);
// The node of pm_nodes that a node of the machine belongs to; without cores: the nearest.
unsigned machine_node_group(unsigned id);

// The node that a page lies on; -1: the kernel does not tell. It answers for DAX, too. It reads the
// page, so it must not be asked about holes: the kernel would fill them.
int machine_page_node(const void *page);
// Has the kernel take the pages of a shared mapping to a node, as far as it can: those that this
// process has mapped, and alone. New pages of the file lie there, too, if it is in memory.
void machine_pages_move(void *at, size_t len, unsigned id);
// The calling thread's new pages, those of files that it writes, too, come from this node.
void machine_node_prefer(unsigned id);

#endif

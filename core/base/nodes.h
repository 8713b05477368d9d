// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The NUMA nodes of the machine: how many there are, and on which one the calling thread runs. A
// node is a number from 0, in the order of the kernel's. Nodes without processor cores do not
// count: no thread runs there.
//
// A heap has up to PM_SHARDS data files, so as many nodes can have memory of their own. Where the
// machine has more, those that are near each other are one node here (node_groups.h). It has all of
// their cores, and the kernel chooses among their memory. Which ones they are does not depend on
// where the process may run: a heap's data files keep their places.
//
// Where there is one node, or PMALLOC_NUMA=off says so, all of this costs one load. For tests,
// PMALLOC_TOPOLOGY names nodes that the machine does not have, and deals the threads to them.
#ifndef PM_NODES_H
#define PM_NODES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "geometry.h"
#include "message.h"

#define PM_NODES_MAX PM_SHARDS

struct pm_nodes {
    unsigned count;
    unsigned machine;                // how many of the kernel's they are
    unsigned cores;                  // that this process may run on; 0: not known yet
    uint16_t cores_of[PM_NODES_MAX]; // by node, if there are several; may be 0
    bool injected;                   // by PMALLOC_TOPOLOGY: the kernel knows no such nodes
    bool ordered;                    // their distances are known
};
extern struct pm_nodes pm_nodes; // one node, until pm_nodes_find()

// Finds out, once, at start; pm_options are set. PM_USAGE: PMALLOC_TOPOLOGY is wrong.
int pm_nodes_find(struct pm_error *err);

// The slow path of pm_node_now().
unsigned pm_node_look(void);

// Returns the node that the calling thread runs on. The thread may be on another one at once.
static inline unsigned pm_node_now(void) { return pm_nodes.count == 1 ? 0 : pm_node_look(); }

// Returns the node that is asked for memory at this turn, from 0, of pm_nodes.count: `node` itself,
// then the others, the nearest ones first.
unsigned pm_node_near(unsigned node, unsigned turn);
// Whether one of the kernel's nodes belongs to a node.
bool pm_node_has(unsigned node, unsigned id);

// Returns the node of the device that a file system lies on; -1: not known. A
// device of a node without cores is of the nearest one.
int pm_node_of_device(dev_t device);
// The same of a device /dev/daxX.Y.
int pm_node_of_dax(dev_t device);

// The calling thread, one of PMAlloc's own, runs on cores of this node alone from now on. Does
// nothing where the machine has one node, or none of the node's cores is this process's.
void pm_node_stay(unsigned node);

// How many cores this process may run on, at least 1.
unsigned pm_nodes_cores(void);

// For tests, with an injected topology: the calling thread is on this one of the machine's nodes
// from now on, counted from 0.
void pm_node_move(unsigned node);

#endif

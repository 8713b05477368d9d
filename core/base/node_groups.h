// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// NUMA nodes by their distances, as the kernel tells them: which ones go together where there are
// more than a heap can have data files, and which one is next to which. No system call is made
// here.
#ifndef PM_NODE_GROUPS_H
#define PM_NODE_GROUPS_H

#include <stdint.h>

#define PM_KERNEL_NODES 1024u // the most that any kernel numbers

// The distances between `count` nodes, row by row; NULL: nothing is known of them.
struct pm_node_distances {
    unsigned count;
    const uint8_t *row;
};

// Puts the nodes into groups, `most` or fewer: group[i] is that of node i. As many nodes as fit are
// each their own group. Else nodes that are near each other share one, those nearest first; where
// distances do not tell, neighbours by number do. Returns the number of groups.
unsigned pm_node_groups(struct pm_node_distances d, unsigned most, uint8_t *group);

// Writes to near[i] of each group all groups, itself first, by rising distance between their
// nearest members. Of equal ones, those after it come first, then round again from 0.
void pm_node_order(struct pm_node_distances d, const uint8_t *group, unsigned groups, uint8_t *near,
                   unsigned stride);

#endif

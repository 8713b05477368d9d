// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the kernel's files say of NUMA nodes: which there are, their cores, their distances. Nodes
// are the kernel's numbers here, below PM_KERNEL_NODES, and there may be gaps between them.
#ifndef PM_NODE_FILES_H
#define PM_NODE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node_groups.h"

#define PM_KERNEL_CORES 8192u // the most that any kernel numbers

struct pm_core_set {
    unsigned long bits[PM_KERNEL_CORES / (8 * sizeof(unsigned long))];
};

struct pm_node_list {
    unsigned count;
    uint16_t id[PM_KERNEL_NODES];
};

// Where the files are; NULL: the kernel's. A test's folder ends with a slash.
extern const char *pm_node_folder;

// Reads a file into a string. False: there is nothing to read.
bool pm_node_text(const char *path, char *text, size_t size);
// Reads a list of nodes, by rising number: "has_cpu", "online".
void pm_node_list(const char *name, struct pm_node_list *out);
// Sets the bits of a node's cores.
void pm_node_cores(unsigned id, struct pm_core_set *out);
// Writes to row[i] how far list->id[i] is from node `id`. `online` is the list of that name. False:
// the kernel does not tell.
bool pm_node_distance(unsigned id, const struct pm_node_list *online,
                      const struct pm_node_list *list, uint8_t *row);

#endif

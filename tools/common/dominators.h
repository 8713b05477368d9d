// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What in a graph can be reached through one node alone: its dominators, by the semi-NCA method of
// Georgiadis (2005), in about the time that a walk over the edges takes.
#ifndef PM_TOOLS_DOMINATORS_H
#define PM_TOOLS_DOMINATORS_H

#include <stdbool.h>
#include <stdint.h>

// Node i leads to edge[first[i]] up to, and without, edge[first[i + 1]]. All is reached from node
// 0.
struct graph {
    uint32_t count;
    const uint64_t *first; // of count + 1
    const uint32_t *edge;
};

#define DOMINATORS_NONE UINT32_MAX

// dominator[i] becomes the last node, before i, through which every way from node 0 to node i
// leads; DOMINATORS_NONE for node 0 and for what is not reached. order[0] .. order[reached - 1] are
// the nodes that are reached, each one after its dominator. Returns how many these are; 0: there is
// no memory.
uint32_t dominators_find(const struct graph *g, uint32_t *dominator, uint32_t *order);

#endif

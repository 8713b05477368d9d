// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where a heap would lie, and what of this system would stand in its way. No heap is made, opened
// or changed.
#ifndef PM_TOOLS_PLACE_H
#define PM_TOOLS_PLACE_H

#include <stdbool.h>

// Prints lines on the heap: where, what is there, the space and the guarantee; false: it cannot lie
// there. `heap` is as PMALLOC_HEAP takes it.
bool place_heap(const char *heap);
// Whether the addresses of the program and its libraries stay. `fixed`: it is linked to an address.
void place_addresses(bool fixed);
// Limits and settings of this system that an operator should know of; nothing if there are none.
void place_limits(void);

#endif

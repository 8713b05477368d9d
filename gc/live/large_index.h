// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// From an address to the large block around it, while the heap stands still. One entry for each
// 64 KiB of the heap: the first large block that overlaps them. Slabs need none, because
// pm_vslabs has one for each.
#ifndef PM_LARGE_INDEX_H
#define PM_LARGE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

// Makes it for the heap's first `frontier` bytes. False: no memory.
bool pm_large_index_make(uint64_t frontier);
// The extent of the large block in use around this offset from pm_base, which is below the
// frontier and in no slab; 0: there is none.
uint32_t pm_large_index_find(uint64_t offset);
void pm_large_index_drop(void);

#endif

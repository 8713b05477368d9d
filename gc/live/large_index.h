// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// From an address to the large block around it, as of the moment at which the index was made: the
// heap stands still then, and may go on. Slabs need none, because pm_vslabs has one for each.
#ifndef PM_LARGE_INDEX_H
#define PM_LARGE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

struct pm_large {
    uint64_t page;
    uint32_t pages, extent;
    uint32_t next; // of those that begin in the same stripe
};

// Makes it for the heap's first `frontier` bytes. False: no memory.
bool pm_large_index_make(uint64_t frontier);
// The large block in use around this offset from pm_base, which is below the frontier and in no
// slab. NULL: there is none.
const struct pm_large *pm_large_index_find(uint64_t offset);
void pm_large_index_drop(void);

#endif

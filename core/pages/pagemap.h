// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// From an address to its metadata. The range is fixed, so these are flat tables. Only the parts for
// heap in use are touched:
//
//   pm_tag[granule]       1 byte for each 16 bytes: the tag of the block that starts there
//   pm_page_extent[page]  the index of the extent whose first or last page this is; else 0
//
// One load from pm_tag makes all three checks of a free. The granule number is in range only if the
// address is in the heap's range and a multiple of 16. The tag is not 0 only if a block starts
// there, and only while the block is handed out.
//
// Lock: none for the tags of blocks. Tags are volatile; malloc stores one, free clears it. The only
// thread that may do so is the one that owns the block at that time, so relaxed byte stores are
// enough. Two threads that free one block at the same moment may both pass: the check finds
// mistakes, it is not a defence. pm_page_extent is under the extent lock.
#ifndef PM_PAGEMAP_H
#define PM_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sizeclass.h"
#include "media/format.h"
#include "media/heap.h"

#define PM_GRANULES (pm_range >> PM_GRANULE_SHIFT)
#define PM_PAGES (pm_range >> PM_PAGE_SHIFT)
#define PM_SLABS (pm_range >> PM_SLAB_SHIFT)

enum {
    PM_TAG_NONE = 0,
    // 1 .. PM_CLASSES: a small block of that class
    PM_TAG_EXTENT = PM_CLASSES + 1,
    PM_TAG_KIND, // a block, small or large, of another kind than PM_KIND_CONSERVATIVE, or held
    PM_TAGS
};

extern uint8_t *pm_tag;
extern uint32_t *pm_page_extent;

// Reserves the tables, which grow with the heap (lazy_table.h). False: the process may not have
// that much address space.
bool pm_pagemap_init(void);

// Returns the number of the granule at an address. An address that is outside the range or not a
// multiple of 16 gives a number >= PM_GRANULES: the rotation moves its low 4 bits to the top.
static inline uint64_t pm_granule_from(uint64_t base, const void *p) {
    uint64_t x = (uint64_t)(uintptr_t)p - base;
    return (x >> PM_GRANULE_SHIFT) | (x << (64 - PM_GRANULE_SHIFT));
}

static inline uint64_t pm_granule(const void *p) { return pm_granule_from(pm_base, p); }

static inline bool pm_in_range(const void *p) { return pm_heap_offset(p) < pm_range; }

#endif

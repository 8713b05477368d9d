// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Address to metadata. The range is fixed, so these are flat tables, touched only where the heap is in use:
//
//   pm_tag[granule]     1 byte for each 16 bytes: what is allocated and starts exactly there
//   pm_page_extent[page] index of the extent whose first or last page this is
//
// One byte of pm_tag is all three sanity checks of a free at once: the granule number is in range and whole
// (address known), a tag stands only at exact starts (block start), and only while the block is handed out
// (currently allocated). Tags are volatile. malloc stores one, free clears it; the owner of the block is
// the only writer, so plain relaxed byte stores do. Two threads freeing one block at the same instant may
// both pass: the check finds mistakes, it is not a defence.
#ifndef PM_PAGEMAP_H
#define PM_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "layout.h"
#include "sizeclass.h"

#define PM_GRANULES (pm_range >> PM_GRANULE_SHIFT)
#define PM_PAGES (pm_range >> PM_PAGE_SHIFT)
#define PM_SLABS (pm_range >> PM_SLAB_SHIFT)

enum {
    PM_TAG_NONE = 0,
    /* 1 .. PM_CLASSES: a block of that class */ PM_TAG_EXTENT = PM_CLASSES + 1,
    PM_TAGS
};

extern uint8_t *pm_tag;
extern uint32_t *pm_page_extent;

// Reserves the tables; false when the address space is limited too tightly.
bool pm_pagemap_init(void);
// Makes them writable for the first `bytes` of the heap; false when memory is out. As pm_table_need().
bool pm_pagemap_cover(uint64_t bytes);

// Granule number of an address; misaligned and foreign addresses give numbers >= PM_GRANULES, because the
// rotation moves their low bits to the top.
static inline uint64_t pm_granule_from(uint64_t base, const void *p) {
    uint64_t x = (uint64_t)(uintptr_t)p - base;
    return (x >> PM_GRANULE_SHIFT) | (x << (64 - PM_GRANULE_SHIFT));
}

static inline uint64_t pm_granule(const void *p) { return pm_granule_from(pm_base, p); }

static inline bool pm_in_range(const void *p) { return pm_heap_offset(p) < pm_range; }

#endif

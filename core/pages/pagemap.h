// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// From an address to its metadata. The range is fixed, so these are flat tables. Only the parts for
// heap in use are touched:
//
//   *pm_tag_at(p)          1 byte for each 16 bytes: the tag of the block that starts there
//   *pm_page_extent(page)  the index of the extent whose first or last page this is; else 0
//
// One load from pm_tag makes all three checks of a free. The granule number is in range only if the
// address is in the heap's range and a multiple of 16. The tag is not 0 only if a block starts
// there, and only while the block is handed out.
//
// Tags do not stand by rising address. The 65536 tags of a MiB fill 16 pages of pm_tag, and a page
// has those of one row: of the granules whose numbers end in the same 4 bits.
//
//   row 0   the granules at multiples of 256     all tags of blocks of 256, 512, 768, ... bytes
//   row 4   64 bytes after such a multiple       rows 0, 4, 8, 12: of 64, 192, 320, ...
//   row 1   16 bytes after one                   all rows: of 16, 48, 80, ...
//
// So blocks whose size is a multiple of 64 or of 256 touch a quarter or a sixteenth of the pages.
//
// Nor do the entries of the page map. Of a slab only the first and the last page have one. Those of
// all slabs' places in 32 MiB lie together, in one page of eight:
//
//   first pages, last pages | the pages between, by address
//
// Lock: none for the tags of blocks. Tags are volatile; malloc stores one, free clears it. The only
// thread that may do so is the one that owns the block at that time, so relaxed byte stores are
// enough. Two threads that free one block at the same moment may both pass: the check finds
// mistakes, it is not a defence. The page map is under the extent lock.
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
    // A block of another kind than PM_KIND_CONSERVATIVE, or held; not those that follow.
    PM_TAG_KIND,
    // PM_TAG_POINTER_FREE + 1 .. PM_CLASSES: a small pointer-free block of that class, not held.
    PM_TAG_POINTER_FREE = PM_TAG_KIND,
    PM_TAGS = PM_TAG_POINTER_FREE + PM_CLASSES + 1
};

// The class of a small block with this tag. 0: the tag does not say one.
static inline unsigned pm_tag_class(unsigned tag) {
    return tag <= PM_CLASSES ? tag : tag > PM_TAG_POINTER_FREE ? tag - PM_TAG_POINTER_FREE : 0;
}

extern uint8_t *pm_tag;
extern uint32_t *pm_page_map;

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

// Where the tag of a granule stands in pm_tag. Malloc and free do this; it is two instructions. The
// rotation of the low 16 bits makes the row the page. The addition, within a row's 256 tags of a
// slab, keeps the tags of neighbours from being 4096 bytes apart, in one set of the cache.
static inline uint64_t pm_tag_index(uint64_t granule) {
    __asm__("rorw $4, %w0\n\taddb %h0, %b0" : "+Q"(granule) : : "cc");
    return granule;
}
// The granule whose tag stands there.
static inline uint64_t pm_tag_granule(uint64_t index) {
    uint16_t low = (uint16_t)((index & 0xff00) | ((index - (index >> 8)) & 0xff));
    return (index & ~(uint64_t)0xffff) | (uint16_t)(low << 4 | low >> 12);
}
static inline uint8_t *pm_tag_at(const void *p) { return &pm_tag[pm_tag_index(pm_granule(p))]; }
static inline uint64_t pm_tag_index_of_page(uint64_t page) {
    return pm_tag_index(page << (PM_PAGE_SHIFT - PM_GRANULE_SHIFT));
}
static inline uint8_t *pm_tag_of_page(uint64_t page) { return &pm_tag[pm_tag_index_of_page(page)]; }

// The tags of a slab are PM_TAG_ROWS runs of PM_TAG_RUN; this is the index of the first one in a
// row.
#define PM_TAG_ROWS 16u
#define PM_TAG_RUN (PM_SLAB_BLOCKS_MAX / PM_TAG_ROWS)
static inline uint64_t pm_tag_run(uint64_t slab, unsigned row) {
    const uint64_t slabs = 16; // of a MiB
    return (slab / slabs * PM_TAG_ROWS + row) * slabs * PM_TAG_RUN + slab % slabs * PM_TAG_RUN;
}

#define PM_MAP_SHIFT 25 // the entries of this number of bytes lie together
#define PM_MAP_SLABS (1u << (PM_MAP_SHIFT - PM_SLAB_SHIFT))
#define PM_SLAB_PAGES ((unsigned)(PM_SLAB_SIZE >> PM_PAGE_SHIFT))
// Where the entry of a page stands in the page map.
static inline uint64_t pm_page_map_index(uint64_t page) {
    const uint64_t group = PM_SLAB_PAGES * PM_MAP_SLABS;
    uint64_t slab = page / PM_SLAB_PAGES % PM_MAP_SLABS;
    uint64_t turned = (page + 1) % PM_SLAB_PAGES; // 0: the last page of its slab, 1: the first
    if (turned < 2)
        return page / group * group + turned * PM_MAP_SLABS + slab;
    // As without the group's first two parts, of which each slab has one entry.
    return page / PM_SLAB_PAGES * PM_SLAB_PAGES - 2 * slab + 2 * PM_MAP_SLABS + turned - 2;
}
static inline uint32_t *pm_page_extent(uint64_t page) {
    return &pm_page_map[pm_page_map_index(page)];
}

static inline bool pm_in_range(const void *p) { return pm_heap_offset(p) < pm_range; }

#endif

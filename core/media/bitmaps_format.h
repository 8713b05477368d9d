// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The part of the format that bitmaps.0 has: which blocks were allocated at a clean close. format.h
// has the rest, and the rules.
#ifndef PM_BITMAPS_FORMAT_H
#define PM_BITMAPS_FORMAT_H

#include <stdint.h>

#define PM_BITMAPS_MAGIC 0x2150414d5449426dull

struct pm_bitmaps_header {
    uint64_t magic;
    uint64_t tag;   // equals pm_state.bitmaps_tag
    uint64_t slabs; // records
    uint64_t bytes; // of the records that follow
    uint32_t crc;   // of the records
    uint32_t header_crc;
    uint8_t reserved[24];
};
_Static_assert(sizeof(struct pm_bitmaps_header) == 64, "frozen");

// One record per slab, by rising slab number. For a slab that has old blocks a second record
// follows, with PM_BITMAP_OLD. After each record come `words` 64-bit words: bit i is set if block i
// is allocated.
struct pm_bitmap_record {
    uint32_t slab;
    uint16_t size_class;
    uint16_t words;
};
_Static_assert(sizeof(struct pm_bitmap_record) == 8, "frozen");
#define PM_BITMAP_OLD 0x100u // in size_class

#endif

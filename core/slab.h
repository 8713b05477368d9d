// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slabs: 64 KiB extents, 64 KiB aligned, holding blocks of one size class. The persistent header (size class,
// data offset, morphing fields) lies out of line in slabs.0; everything else is volatile and rebuilt.
#ifndef PM_SLAB_H
#define PM_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "message.h"
#include "pagemap.h"
#include "sizeclass.h"

#define PM_BITMAP_WORDS (PM_SLAB_BLOCKS_MAX / 64)

// Where a slab stands in its bin.
enum pm_listed {
    PM_LISTED_NOT,    // has nothing to give
    PM_LISTED_FREE,   // the list of slabs with free blocks
    PM_LISTED_SPARSE, // the queue of those that may morph
};

// Volatile slab header ("vslab"), in a flat table by slab number. Owned by its arena's bin lock.
struct pm_vslab {
    uint32_t next, prev; // the bin's list or queue: slab number + 1
    uint32_t extent;
    uint16_t free_count;
    uint16_t arena;
    uint8_t size_class; // 0: no slab here
    uint8_t listed;     // enum pm_listed
    uint8_t stale_tags; // recovered: pm_tag does not know its live blocks yet
    // While it morphs, see morph.h:
    uint8_t old_class;   // 0: all blocks are of size_class
    uint32_t table;      // of a persistent heap: line of its index table
    uint16_t old_live;   // blocks of old_class in use ...
    uint16_t old_listed; // ... and listed in the table
    uint16_t blocked;    // blocks of size_class that lie on those listed
    uint16_t reserved;
    uint32_t queued, used; // when it became sparse, and last gave or took, by the arena's clock
    uint64_t free[PM_BITMAP_WORDS]; // bit i: block i is neither handed out nor in a tcache
};
_Static_assert(sizeof(struct pm_vslab) == 40 + PM_BITMAP_WORDS * 8, "header and bitmap");

extern struct pm_vslab *pm_vslabs;

bool pm_slab_init(void);
// As pm_pagemap_cover(), for the slabs.
bool pm_slab_cover(uint64_t bytes);

static inline uint32_t pm_slab_of(const void *p) {
    return (uint32_t)(pm_heap_offset(p) >> PM_SLAB_SHIFT);
}
static inline char *pm_slab_start(uint32_t slab) {
    return pm_heap_at((uint64_t)slab << PM_SLAB_SHIFT);
}
static inline unsigned pm_slab_words(unsigned cls) { return (pm_classes[cls].blocks + 63) / 64; }

// Takes an extent, writes its header and publishes it, in this order: the log entry is the commit point.
// All blocks free. Returns slab number + 1; 0 when there is no memory.
uint32_t pm_slab_create(unsigned cls, uint16_t arena);
// Gives an entirely free slab back.
void pm_slab_destroy(uint32_t slab);
// Takes up to `want` free blocks, by rising address. Bin lock held.
unsigned pm_slab_pop(uint32_t slab, void **blocks, unsigned want);
// Returns a block. Bin lock held.
void pm_slab_push(uint32_t slab, void *block);
// Writes the tags of a recovered slab's live blocks. Bin lock held, before any block of it is handed out.
void pm_slab_refresh_tags(uint32_t slab);

// Every block free.
void pm_slab_all_free(struct pm_vslab *v);

// Makes a slab on media one of class `cls` with the index table `line` (0: none), durably.
void pm_slab_commit_now(uint32_t slab, unsigned cls, uint32_t line);

// The checksum of a slab's header: of its number, so that it does not pass for another's, and its bytes.
uint32_t pm_slab_header_crc(uint32_t slab, const struct pm_slab_header *header);
// Size class of a slab's header on media, 0 when its checksum is wrong; *line, where given, is its index table's.
unsigned pm_slab_media_class(uint32_t slab, uint32_t *line);
// Checks the media header of a slab that the log names; fills the volatile side with every block free, but for those
// that a morph's index table lists.
// PM_DAMAGE when the header is not right.
int pm_slab_adopt(uint32_t slab, uint32_t extent, struct pm_error *err);
// What a killed process stored last may be in the caches alone: flushes headers and index tables as they were read, for
// the drain of pm_heap_dirty().
void pm_slab_settle(void);

#endif

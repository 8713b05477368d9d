// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pinned blocks: what media say of them (media/kind_format.h), and which of them are alive. The
// order of stores:
//
//   allocate   the slab's table, empty, and its header, or the large block's header
//              -> the log entry -> the block's bit -> the pointer is handed out
//   free       the bit is cleared -> the bytes are used again; a large block's extent stands
//              (pages/extent_standing.h), or its entry ends, which needs no bit
//   far free   an entry of a deallocation log -> the bit -> the end of the entry -> the same
//   publish    the bits are stores of its lane
//
// A reserved block has no bit: it is in use in this process, and free after a crash. The log entry
// of a large one stands, but recovery frees it.
//
// A slab of pinned blocks never morphs.
#ifndef PM_PINNED_H
#define PM_PINNED_H

#include "pages/extent.h"
#include "slab.h"

// Makes the header of a large block, pinned or typed, durable, as not allocated. Off media it does
// nothing.
void pm_pinned_make_large(const struct pm_extent *e);

// ---- for those who allocate and free ----
// The bit of a block in use: where it is on media, and its mask.
struct pm_pin {
    uint64_t place;
    uint32_t mask;
};
struct pm_pin pm_pin_of(const void *p);
// Sets or clears the bit, durably. Off media both do nothing.
void pm_pin(const void *p);
void pm_unpin(const void *p);
// Takes up to `want` free blocks, each of the stripe after the one before. Bin lock held.
unsigned pm_pinned_pop(uint32_t slab, void **blocks, unsigned want);

// ---- recovery ----
// Checks the table of a slab that pm_slab_adopt() has filled in, and marks its lines as in use.
int pm_pinned_adopt(uint32_t slab, struct pm_error *err);
// Reads the type, too.
int pm_pinned_adopt_large(struct pm_extent *e, struct pm_error *err);
// The slab's allocated blocks, as media say, with publishes and frees that recovery would finish.
void pm_pinned_used(uint32_t slab, uint64_t used[PM_BITMAP_WORDS]);
bool pm_pinned_large_is_used(const struct pm_extent *e);

#endif

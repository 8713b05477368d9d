// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Conservative marking of a heap that is in use. Recovery marks in the slabs' bits, which the
// running allocator needs (recovery/mark.h). Here the tags say what is allocated: a block has a tag
// exactly while it is handed out, so what lies in thread caches, bins and extent caches is free.
// The marks have memory of their own, a bit for each granule, so nobody notices them.
//
// Calls come from one thread at a time, in the order of this file. All others are held, none of
// them inside the allocator, but where a function says otherwise. Nothing here allocates or calls
// what might wait for a held thread.
#ifndef PM_LIVE_MARK_H
#define PM_LIVE_MARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

// Reserves memory to mark with. `markers`: how many threads, with this one; 0: as many as processor
// cores. Others are made only where there is much to mark (helpers.h).
int pm_live_begin(unsigned markers, struct pm_error *err);
// Marks the blocks that aligned words of [from, from + len) point to, or into.
void pm_live_root(const void *from, size_t len);
// Marks everything that they reach. The program may run: see below.
void pm_live_mark(void);
// Whether a block in use was reached.
bool pm_live_is_reached(const void *block);
// Calls `each` for every block in use that was not reached.
struct pm_live_sum {
    uint64_t blocks, bytes; // in use
};
typedef void pm_live_fn(void *block, size_t bytes, void *arg);
struct pm_live_sum pm_live_unreached(pm_live_fn *each, void *arg);

// Marking beside the program: all threads go on after the roots, and are held once more at the end.
// The kernel's record of stores (live_record.h) begins before pm_live_mark(). Then:
//
//   pm_live_note()      threads run. Which blocks are not reached? A block that is a leak at the
//                       end, and was not allocated since, is among them.
//   pm_live_again()     held again, once more with all roots
//   pm_live_stored()    each piece of the heap that was stored to since the record began: a pointer
//                       that has moved was stored to one of them, or is in a root
//   pm_live_mark()
//   pm_live_noted()     calls `each` for what was noted, is in use, and was not reached
//
// What the marker sees while threads run may be torn: blocks come and go. It then marks too much,
// in its own bits, or reads where nothing is, so it is to be a process that may die of that. A mark
// too many only hides a leak that is younger than the look. A mark too few does no harm: at the end
// every marked block has been scanned as it is, or as it was before the stores that are in the
// record; so what a word leads to is marked.
bool pm_live_note(void);
int pm_live_again(struct pm_error *err);
void pm_live_stored(const void *from, size_t len);
struct pm_live_sum pm_live_noted(pm_live_fn *each, void *arg);

// Frees what pm_live_begin() reserved.
void pm_live_end(void);

#endif

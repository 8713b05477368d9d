// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Marking for the collector in the living process. Other than live_mark.h it looks at collectable
// blocks alone, and follows each as its kind says. A descriptor is one word; its low two bits say
// how the other bits are read (the interface is that of gc_mark.h):
//
//   0  length      this number of bytes from the start is scanned; 0: the block has no pointers
//   1  bitmap      bit 63 is the first word, bit 62 the second, and so on
//   2  procedure   6 bits: its number; the rest: an argument. It calls pm_trace_pointer()
//   3  per object  the descriptor stands in the block, at this offset; or, if negative, in what the
//                  block's first word points to
//
// A pointer is an aligned word with an address of the first byte of a block or into it. All calls
// come from one thread, while all others are held. Where there is much to scan, it has helpers
// (helpers.h). Nothing here allocates.
#ifndef PM_TRACE_H
#define PM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"
#include "collectable.h"

#define PM_TRACE_LENGTH 0u
#define PM_TRACE_BITMAP 1u
#define PM_TRACE_PROC 2u
#define PM_TRACE_PER_OBJECT 3u
#define PM_TRACE_INDIRECT_BIAS 16u // see GC_INDIR_PER_OBJ_BIAS
// Of a kind whose blocks have their descriptor as their last word; the block's size is added.
#define PM_TRACE_LAST_WORD ((uint64_t)PM_TRACE_PER_OBJECT - 8)
#define PM_TRACE_PROCS 64u

// What gc_mark.h says of a mark procedure. The stack of entries is ours; it passes the pointers on.
typedef void *pm_trace_proc(uint64_t *block, void *entries, void *limit, uint64_t argument);
extern pm_trace_proc *pm_trace_procs[PM_TRACE_PROCS];

// How many markers there are to be, before the first call; 0: as many as processor cores.
extern unsigned pm_trace_wanted;
// Reserves memory, at the first call. Indexes the large blocks.
int pm_trace_begin(struct pm_error *err);
// The blocks of malloc() and uncollectable blocks are roots. So is what those of kinds point to
// that hold it, dead or alive (collectable.h).
void pm_trace_explicit(void);
// Marks what the aligned words of [from, from + len) point to.
void pm_trace_range(const void *from, size_t len);
// The same for one pointer.
void pm_trace_pointer(const void *p);
// Marks what the block reaches, but not the block, unless it reaches itself. `not_itself`: pointers
// from it to itself are ignored.
void pm_trace_children(const void *block, bool not_itself);
// Marks the block at `p`, without what it reaches. Between collections this takes a dead block from
// the sweep. Who calls one of the two then has the sweep wait.
void pm_trace_only(const void *p);
// Takes the mark away. Between collections the block is then as one that is younger than the last.
void pm_trace_unmark(const void *p);
// Marks all that is reached from what is marked.
void pm_trace_all(void);
// How many markers have scanned something since pm_trace_begin().
unsigned pm_trace_took_part(void);

// Whether the block around `p` is alive: marked, or no block that could die.
bool pm_trace_is_alive(const void *p);
// All blocks of the collector's that the last collection has found alive, and those that cannot
// die. The world is held.
typedef void pm_trace_each_fn(uint64_t offset, uint64_t size);
void pm_trace_each_reached(pm_trace_each_fn *each);

// After the marks have been looked at (sweep.h).
void pm_trace_end(void);

#endif

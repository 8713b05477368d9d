// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Conservative marking of a heap that is in use. Recovery marks in the slabs' bits, which the
// running allocator needs (recovery/mark.h). Here the tags say what is allocated, and their top bit
// is the mark: a block has a tag exactly while it is handed out, so what lies in thread caches,
// bins and extent caches is free.
//
//   tag of a block's first granule     0: no block     class: not reached     class + 128: reached
//
// The marks must be gone before any thread goes on, because the allocator reads tags.
//
// Calls come from one thread, in the order of this file. All others are held, none of them inside
// the allocator. Nothing here allocates or calls what might wait for a held thread.
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
// Marks everything that they reach.
void pm_live_mark(void);
// Whether a block in use was reached.
bool pm_live_is_reached(const void *block);
// Calls `each` for every block in use that was not reached, and removes all marks.
struct pm_live_sum {
    uint64_t blocks, bytes; // in use
};
typedef void pm_live_fn(void *block, size_t bytes, void *arg);
struct pm_live_sum pm_live_unreached(pm_live_fn *each, void *arg);
// Frees what pm_live_begin() reserved.
void pm_live_end(void);

#endif

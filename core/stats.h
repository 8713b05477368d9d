// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Figures of the running allocator, each read under its own lock: consistent singly, a snapshot together.
#ifndef PM_STATS_H
#define PM_STATS_H

#include <stdint.h>

#include "sizeclass.h"

// blocks = used + cached + free; used: handed out, cached: in tcaches, free: in slabs.
struct pm_class_stats {
    uint64_t slabs, blocks, used, cached, free;
};

struct pm_stats {
    struct pm_class_stats cls[PM_CLASSES + 1];
    uint64_t small_used_bytes, slab_bytes, cached_bytes; // cached: in tcaches
    uint64_t large_blocks, large_bytes;
    uint64_t heap_bytes;      // frontier = slab + large + reclaimed + retained
    uint64_t reclaimed_bytes; // free, still backed
    uint64_t retained_bytes;  // free address space
    uint64_t log_bytes;       // of the bookkeeping log in force
    uint64_t threads;
    uint64_t morphs,
        morphs_ended; // slabs that took up another class; that gave up the last old block
};

// The outcome adds up, also when other threads allocate meanwhile.

void pm_stats_get(struct pm_stats *out);
// On standard error: sums first, then arenas, log, write-backs, and a line a size class.
void pm_stats_say(void);

#endif

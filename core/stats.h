// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Figures of the running allocator, each read under its own lock: consistent singly, a snapshot together.
#ifndef PM_STATS_H
#define PM_STATS_H

#include <stdint.h>

#include "sizeclass.h"

struct pm_class_stats {
    uint64_t slabs, blocks, used; // used: handed out, not in a tcache
};

struct pm_stats {
    struct pm_class_stats cls[PM_CLASSES + 1];
    uint64_t small_used_bytes, slab_bytes, cached_bytes; // cached: in tcaches
    uint64_t large_blocks, large_bytes;
    uint64_t heap_bytes;      // frontier
    uint64_t reclaimed_bytes; // free, still backed
    uint64_t retained_bytes;  // free address space
    uint64_t log_bytes;       // of the bookkeeping log in force
    uint64_t threads;
};

void pm_stats_get(struct pm_stats *out);
// One screen on standard error.
void pm_stats_say(void);

#endif

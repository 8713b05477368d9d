// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Figures of the running allocator. Each is read under the lock that covers it, one after another;
// other threads may allocate in between. The sums below hold all the same, because `used`
// is what the other parts leave of the whole.
#ifndef PM_STATS_H
#define PM_STATS_H

#include <stdint.h>

#include "base/sizeclass.h"
#include "bin.h"

// blocks = used + cached + free. used: handed out; cached: in thread caches; free: in slabs.
// Blocked blocks are not counted.
struct pm_class_stats {
    uint64_t slabs, blocks, used, cached, free;
};

struct pm_stats {
    struct pm_class_stats cls[PM_CLASSES + 1];
    uint64_t small_used_bytes, slab_bytes, cached_bytes; // cached: in thread caches
    uint64_t large_blocks, large_bytes;                  // in use
    uint64_t large_cached, large_cached_bytes;           // freed, and in extent caches
    uint64_t heap_bytes; // slab + large + large_cached + reclaimed + retained: up to the frontier
    uint64_t hole_bytes; // pages of slabs that have no block and no space
    uint64_t reclaimed_bytes; // in free extents that have space
    uint64_t retained_bytes;  // in free extents without space
    uint64_t log_bytes;       // of the chunks of the bookkeeping log in use
    uint64_t threads;
    // How often caches asked a bin for blocks, and by the last step where these came from
    // (reach.h). fills = the sum of steps.
    uint64_t fills, steps[PM_STEPS];
    // Of several nodes: blocks freed from another one, and threads that moved to another one.
    // Large blocks that came from another one. Cached blocks that are of another one: none.
    uint64_t remote_frees, moves, large_far, misplaced;
    // What was taken back (take_back.h), and how many requests failed.
    uint64_t take_backs, blocks_taken_back, caches_asked, failed;
    // Slabs that morphed, and slabs that have lost their last old block since.
    uint64_t morphs, morphs_ended;
};

void pm_stats_get(struct pm_stats *out);
// Prints them on standard error: sums, arenas, log, flushes, then a line for each size class.
void pm_stats_say(void);

#endif

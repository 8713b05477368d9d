// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The last recovery of a heap, and how many there were: for people, and nothing else is decided by
// it. In page 1 of the superblock, after pm_instants_state.
#ifndef PM_RECOVERED_FORMAT_H
#define PM_RECOVERED_FORMAT_H

#include <stdint.h>

struct pm_recovered {
    uint64_t time; // nanoseconds since 1970; 0: there was none
    uint64_t took_us;
    uint64_t live_bytes;    // in blocks that roots reach
    uint64_t freed_bytes;   // in large blocks and whole slabs
    uint32_t count;         // recoveries since the heap was made
    uint32_t freed_extents; // large blocks
    uint32_t freed_slabs;   // slabs, whole
    uint32_t kept_all;      // 1: nothing was marked or freed (PMALLOC_COLLECT)
    uint64_t reserved;
    uint32_t reserved_tail;
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_recovered) == 64, "one line");

#endif

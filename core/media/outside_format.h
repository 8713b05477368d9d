// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The mappings of the heap's last process outside of the heap, on media (outside.h). It is a hint:
// a range whose check is wrong is ignored.
#ifndef PM_OUTSIDE_FORMAT_H
#define PM_OUTSIDE_FORMAT_H

#include <stdint.h>

#define PM_OUTSIDE_NAME 104u
#define PM_OUTSIDE_RANGES 16u

enum pm_outside_kind {
    PM_OUTSIDE_STACK = 1, // of the first thread
    PM_OUTSIDE_TLS,       // its thread-local memory
    PM_OUTSIDE_THREADS,   // from the lowest to the highest of the others' stacks
    PM_OUTSIDE_FILE,
    PM_OUTSIDE_ANONYMOUS,
};

// Addresses. All is zero where there is none.
struct pm_outside_range {
    uint64_t from;
    uint64_t to;
    uint32_t kind;
    char name[PM_OUTSIDE_NAME]; // of a file: its path, the end of a long one; "": not known
    uint32_t crc;               // of all bytes before it
};
_Static_assert(sizeof(struct pm_outside_range) == 128, "two lines");

// After pm_shard_state, in pm_state.reserved.
struct pm_outside {
    uint64_t looked; // 1: at a clean end nothing in the heap led there, or a line has said what
    // From the lowest to the highest address of the files that `range` has no room for any more;
    // 0 and 0: there are none. Each only ever becomes wider, so a kill between them does no harm.
    uint64_t forgotten_from;
    uint64_t forgotten_to;
    uint8_t reserved[40];
    struct pm_outside_range range[PM_OUTSIDE_RANGES];
};
_Static_assert(sizeof(struct pm_outside) == 2112, "frozen");

#endif

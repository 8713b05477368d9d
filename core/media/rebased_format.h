// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How often words of a heap were made to lead into another build or place of its program, and the
// last time: for people, and nothing else is decided by it. In page 1 of the superblock, after
// pm_recovered.
#ifndef PM_REBASED_FORMAT_H
#define PM_REBASED_FORMAT_H

#include <stdint.h>

struct pm_rebased {
    uint64_t time;        // nanoseconds since 1970; 0: there was none
    uint64_t words;       // that were changed the last time
    uint64_t words_ever;  // and each time together
    uint32_t count;       // since the heap was made
    uint32_t other_build; // 1: the last time for another build, 0: it lay elsewhere
    uint64_t reserved[3];
    uint32_t reserved_tail;
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_rebased) == 64, "one line");

#endif

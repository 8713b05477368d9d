// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The form `before` (forms.h): a word names each block that lies behind it by no more than the
// block is long. An array that begins at 1 has such an address; oneTBB's containers keep each
// segment of theirs by the address where element 0 would be, and a segment is as long as all before
// it.
#ifndef PM_BEHIND_H
#define PM_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

#include "forms.h"

// Whether a block of this size class lies around the offset.
typedef bool pm_is_class_fn(uint64_t offset, unsigned cls);

// The large blocks by rising address, as they were when marking began.
struct pm_behind {
    struct pm_behind_large *large;
    uint32_t count;
    uint64_t frontier, longest, bytes;
};

// Notes them, if the form is looked for. Nothing changes them meanwhile. False: there is no memory,
// with errno.
bool pm_behind_make(struct pm_behind *b);
void pm_behind_drop(struct pm_behind *b);

// Calls `consider` for an address in each such block. Any number of threads.
void pm_behind_each(const struct pm_behind *b, uint64_t word, pm_is_class_fn *is_class,
                    void *marker, pm_consider_fn *consider);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where a data file has pages that were ever written. Elsewhere it has holes.
#ifndef PM_WRITTEN_H
#define PM_WRITTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "media/heap.h"

// A piece of the data file that is known to have no holes; all zero at first. The file system finds
// the end of a piece page by page. Without this note it would do so again for every part of a long
// piece, in quadratic time.
struct pm_written {
    uint64_t from, to;
};
// Moves *offset to the next byte below `end` that was ever written, and returns how many written
// bytes follow; 0: there are none. *offset and `end` are in one shard. If the file system cannot
// tell, everything is taken for written. What the process has stored since the last commit is not
// there yet. No lock is needed. `known` belongs to the caller and is valid until space of the file
// is released.
uint64_t pm_heap_next_in_file(struct pm_written *known, uint64_t *offset, uint64_t end);

#endif

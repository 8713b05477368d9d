// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts what lies in the open heap, after a read-only recovery.
#ifndef PM_TOOLS_CENSUS_H
#define PM_TOOLS_CENSUS_H

#include <stdint.h>

#include "sizeclass.h"

enum { CENSUS_FILES = 7, CENSUS_BUCKETS = 32 };

struct census_file {
    const char *name;
    uint64_t length, allocated; // bytes; allocated on the file system
};

// Of one size class, or of the extents of one size range. Blocks in slabs that were morphed count as their own class's.
struct census_class {
    uint64_t slabs, blocks, live;
};
struct census_bucket {
    uint64_t count, live, bytes, live_bytes;
};

struct census {
    struct census_file file[CENSUS_FILES];
    uint64_t metadata_bytes; // allocated by all files but the data and the captured roots
    uint64_t data_bytes;     // allocated by heap.0
    uint64_t frontier, slabs, extents;
    uint64_t morphing;                             // slabs that hold blocks of two classes
    uint64_t active_bytes, slab_bytes, free_bytes; // in slabs and extents; in slabs; in neither
    uint64_t log_chunks, log_active, log_live;
    struct census_class cls[PM_CLASSES + 1];
    // Extents that hold one block: bucket i counts sizes from 2^i pages to less than 2^(i+1).
    struct census_bucket bucket[CENSUS_BUCKETS];
};

void census_take(struct census *c);

// A picture of the heap, `cells` characters for the whole range in use:
//   '.' free   '0'-'9','#' slabs, by tenths of live blocks   'L' large   'H' huge   '?' unreachable large
// The kind with the most bytes in a cell decides.
void census_map(char *out, unsigned cells);

#endif

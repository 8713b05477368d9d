// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts what is in the open heap, after a recovery that does not write.
#ifndef PM_TOOLS_CENSUS_H
#define PM_TOOLS_CENSUS_H

#include <stdint.h>

#include "base/message.h"
#include "base/sizeclass.h"
#include "files.h"

enum { CENSUS_BUCKETS = 32 };

// The figures of one size class. Old blocks of a slab that morphs count for their own class.
struct census_class {
    uint64_t slabs, blocks, live;
};
// The figures of the extents of one range of sizes.
struct census_bucket {
    uint64_t count, live, bytes, live_bytes;
};

struct census {
    struct files files;
    uint64_t frontier, slabs, extents;
    uint64_t morphing;     // slabs that have blocks of two classes
    uint64_t active_bytes; // of active extents, slabs included
    uint64_t slab_bytes;   // of slabs
    uint64_t free_bytes;   // up to the frontier, in no active extent
    uint64_t log_chunks, log_active, log_live;
    uint64_t pointer_free; // live blocks, and in the next line their bytes
    uint64_t pointer_free_bytes;
    uint64_t pinned; // the same
    uint64_t pinned_bytes;
    struct census_class cls[PM_CLASSES + 1];
    // Extents that have one block: bucket i counts sizes from 2^i pages to less than 2^(i+1).
    struct census_bucket bucket[CENSUS_BUCKETS];
};

int census_take(struct census *c, struct pm_error *err);

// Draws the heap up to the frontier in `cells` characters. Each shows the kind of memory that has
// the most bytes in its part of the heap:
//
//   '.' free   '0'-'9', '#' slabs, by tenths of live blocks   'L' large   'H' huge
//   'P' slabs of pinned blocks, and large pinned ones
//   '?' a large or huge block that nothing reaches
void census_map(char *out, unsigned cells);

#endif

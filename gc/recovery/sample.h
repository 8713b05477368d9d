// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Some of what is marked, for looks that a recovery takes in bounded time: one stripe of several,
// so that it takes no longer in a large heap. Marking is at rest.
#ifndef PM_SAMPLE_H
#define PM_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

// A piece of a marked block that may have pointers, or all of it. Memory that was never written is
// no part of any.
struct pm_piece {
    uint64_t block, size; // the block: an offset from pm_base
    unsigned cls;         // 0: a large one
    uint64_t from, to;    // in the block; `from` is a multiple of 8
};

typedef void pm_piece_fn(const struct pm_piece *piece, void *arg);
// Calls `fn` for the parts of a small block that lie on no holes of its slab.
void pm_piece_pages(struct pm_piece block, uint16_t holes, pm_piece_fn *fn, void *arg);
// Calls `fn` for about `bytes` bytes. Returns whether that is all there is.
bool pm_sample_each(uint64_t bytes, pm_piece_fn *fn, void *arg);

#endif

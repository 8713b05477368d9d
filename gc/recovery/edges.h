// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The graph of the heap: which words of a block or a root lead to which blocks. For looks that want
// to know more than what is alive. While marking is at rest, and not beside the program.
//
// Words of the form `before` are not seen.
#ifndef PM_EDGES_H
#define PM_EDGES_H

#include <stdint.h>

#include "block_around.h"
#include "media/backing/written.h"

// `at`: the place of the word in the block or root.
typedef void pm_edge_fn(const struct pm_block *to, uint64_t at, void *arg);

// Calls `fn` for each word that leads to a block, of bytes that the program has at `address`; the
// first of them is byte `from` of what they belong to.
void pm_edges_of_bytes(const void *bytes, uint64_t len, uint64_t address, uint64_t from,
                       pm_edge_fn *fn, void *arg);
// Of one word, of which nobody knows where it lies.
void pm_edges_of_word(uint64_t word, pm_edge_fn *fn, void *arg);
// Of the block that begins at this offset from pm_base. `known` is all zero before the first one.
void pm_edges_of_block(uint64_t block, struct pm_written *known, pm_edge_fn *fn, void *arg);

#endif

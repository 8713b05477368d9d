// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Truncating a file discards even the pages that a private mapping of it has copied. So who has
// such a mapping shares a lock on the file, and who makes it shorter takes that lock alone.
#ifndef PM_DATA_PIN_H
#define PM_DATA_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include "media/heap.h"

// Pins the shard's data file: returns a new read-only descriptor that holds a lock on it, for
// private mappings; -1 on failure. While the descriptor or such a mapping exists, in any process,
// nobody makes the file shorter.
int pm_shard_pin(struct pm_shard *s);
// Makes the file shorter, with the extent lock held. False: it is pinned, or the kernel refuses.
bool pm_shard_cut_file(const struct pm_shard *s, uint64_t size);

#endif

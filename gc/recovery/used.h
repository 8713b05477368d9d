// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The bytes of all blocks in use that may have pointers, once a recovery has swept: whether it has
// marked, has believed the bitmaps of a clean close, or has kept all blocks. Nobody else uses the
// heap meanwhile.
#ifndef PM_USED_H
#define PM_USED_H

#include "media/heap.h"
#include "sample.h"

// Calls `fn` for those of a shard, by rising address. Pieces of blocks that were never written are
// left out.
void pm_used_each(const struct pm_shard *s, pm_piece_fn *fn, void *arg);

#endif

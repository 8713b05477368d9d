// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where the pages of a shard lie.
#ifndef PM_SHARD_PLACE_H
#define PM_SHARD_PLACE_H

#include "shard.h"

// Asks the kernel to place the shard's files on its node. Only files in memory and anonymous memory
// obey. A plain file's pages lie on the node of the thread that touches them first, and DAX pages
// on their device.
void pm_shard_place(const struct pm_shard *s);

#endif

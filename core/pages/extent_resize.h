// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Resizing in place.
#ifndef PM_EXTENT_RESIZE_H
#define PM_EXTENT_RESIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/shard.h"

// Gives an active extent another length. To shrink, its tail becomes free. To grow, it takes in the
// free extents that follow it, and at the end of the heap the frontier moves. Takes the extent
// lock. False: the extent has not changed.
bool pm_extent_resize(uint32_t index, uint64_t pages);

// The same to a shorter length, with the extent lock held: the room behind the block goes, too.
bool pm_extent_shrink(struct pm_shard *s, uint32_t index, uint64_t pages);

#endif

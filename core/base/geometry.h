// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The sizes that give the heap its shape. They are part of the format on media (media/format.h).
#ifndef PM_GEOMETRY_H
#define PM_GEOMETRY_H

#include <stddef.h>

#define PM_PAGE_SHIFT 12
#define PM_PAGE_SIZE ((size_t)1 << PM_PAGE_SHIFT)
#define PM_SLAB_SHIFT 16
#define PM_SLAB_SIZE ((size_t)1 << PM_SLAB_SHIFT)
#define PM_REGION_SIZE ((size_t)4 << 20)
#define PM_GRANULE_SHIFT 4 // every block starts on a multiple of 16 bytes
#define PM_SLAB_BLOCKS_MAX (PM_SLAB_SIZE >> PM_GRANULE_SHIFT)
// The range is divided into shards (media/shard.h).
#define PM_SHARDS 16u // at most
#define PM_SHARD_SHIFT 40
#define PM_SHARD_RANGE (1ull << PM_SHARD_SHIFT)
// The longest extent: a log entry has 26 bits for its pages.
#define PM_ENTRY_PAGES_MAX ((1ull << 26) - 1)

#endif

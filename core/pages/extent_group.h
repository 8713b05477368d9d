// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents taken and published as a group: their entries become durable with one flush, where a
// flush waits for the disk (pm_persist_waits). All extents of a group lie in one shard, because
// their entries stand in one log.
#ifndef PM_EXTENT_GROUP_H
#define PM_EXTENT_GROUP_H

#include "extent.h"

#define PM_GROUP_MAX 64u

// Takes more extents in the shard of one that was just taken: the first of pages[i] pages goes to
// taken[0], and so on. The heap grows at most once for them, and gives nothing back. Returns how
// many it took before one did not fit.
unsigned pm_extent_take_more(uint32_t beside, const uint16_t *pages, unsigned count,
                             uint64_t align_pages, uint32_t *taken);
// Appends the entries of up to PM_GROUP_MAX taken extents; they are durable on return, and no tag
// is set. Returns for how many the log has room, from the first on; the others are free again.
unsigned pm_extent_publish_group(const uint32_t *index, unsigned count, bool slab);

#endif

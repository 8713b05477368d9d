// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Holes: pages of a slab's extent that have no space, because no block in use lies on them
// (blocks/holes.h). Bit p of a set of pages is page p of the extent. The functions take the extent
// lock of the shard. The caller holds the lock that covers the slab.
//
// A hole reads as zeroes. On tmpfs, reading it through the mapping gives it space again, or raises
// SIGBUS if the file system is full. So recovery reads no hole, and a store to it comes only after
// pm_extent_back().
#ifndef PM_EXTENT_HOLES_H
#define PM_EXTENT_HOLES_H

#include "extent.h"

_Static_assert(PM_SLAB_SIZE >> PM_PAGE_SHIFT == 16, "a set of a slab's pages has 16 bits");

// Whether a single page's space can be given back here. Not on DAX, whose unit is 2 MiB. Not in a
// forked child and not after the end of the program: each hole would cost two mappings there.
bool pm_extent_may_punch(void);
// Releases the space of pages; returns those for which the file system did so.
uint16_t pm_extent_punch(uint32_t index, uint16_t pages);
// Gives pages their space, so that touching them cannot fail. `punched` are those of them that
// pm_extent_punch() has returned; others may have their space already. Returns those that have
// space now: all of them, unless the medium is full.
uint16_t pm_extent_back(uint32_t index, uint16_t pages, uint16_t punched);
// The same where stores stay in the process: maps fresh memory over pages on which no block in use
// lies. A store to the private mapping of a hole would take space in the file, or raise SIGBUS.
// In a borrowed heap that file is not ours to change.
uint16_t pm_extent_renew(uint32_t index, uint16_t pages, uint16_t punched);

// Fills in the numbers of up to `max` slabs of one shard whose extents have the indices from *index
// on, and moves *index on, over at most `headers` headers, at the end to the next shard. At the end
// of the last shard it becomes 0.
unsigned pm_extent_some_slabs(uint32_t *index, uint32_t headers, uint32_t *slabs, unsigned max);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Standing extents: the blocks in them were freed, and their entries still stand in the log, so
// that the next request of the same length and kind gets them without a store to media. They are to
// huge blocks, and to large blocks of a kind, what extent caches are to other large blocks
// (blocks/extent_cache.h, which says why an entry may stand). They lie under the extent lock: these
// blocks take it anyway, and are so long that one lock is no cost.
//
//   free     active -> standing     tag: none
//   malloc   standing -> active     tag: a block's; nothing changes on media
//   end      the ends of their entries are durable -> reclaimed
//
// A standing extent takes no space that would not be kept anyway. Before a request takes space that
// is not reclaimed, or the heap grows, or an extent grows over it, all that stands in the shard
// ends. So whatever else is asked for finds what it would have found had nothing stood, and the
// heap is never longer for it. Standing extents also end with age (a tenth of the decay time), when
// PM_STANDING of them stand, at malloc_trim and at the clean close. With PMALLOC_DECAY_MS=0 none
// stands.
#ifndef PM_EXTENT_STANDING_H
#define PM_EXTENT_STANDING_H

#include "extent.h"

// What a request needs. A huge block gets its very length, a shorter one up to an eighth more.
struct pm_sought {
    uint64_t pages, align_pages;
    uint8_t kind; // enum pm_kind
    uint16_t type;
};

// ---- takes the locks ----

// Hands out a standing extent of a node's memory, with the tag of a block. 0: none fits.
uint32_t pm_standing_take(unsigned node, const struct pm_sought *sought);

// ---- the caller holds the lock ----

// Whether an active extent may stand: it is that of a huge block, or of a large one of a kind.
bool pm_standing_may(const struct pm_extent *e);
// Makes it stand. Its tag was cleared.
void pm_standing_put(struct pm_shard *s, uint32_t index);
// Ends what has stood for `steps` steps of decay or longer. Returns whether anything did.
bool pm_standing_end(struct pm_shard *s, uint64_t steps);
// For the clean close, which finds these extents by their tags.
void pm_standing_forget(void);

#endif

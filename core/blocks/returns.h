// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks that come back to their slabs: under the lock of the slab's bin or, from another NUMA
// node, without it.
//
// A thread caches blocks of its own node only. A block of another node goes to its slab's remote
// set, by one atomic instruction, and stays there until an arena of that node needs blocks:
//
//   free on another node    bit of the block set ; slab not queued: queued, pushed to bin->remote
//   drain, bin locked       bin->remote taken ; of each slab: not queued, then all bits taken
//
// Both sides write first and then look: the free sets its bit before it reads `queued`, the drain
// clears `queued` before it reads the bits. All four are sequentially consistent. So a bit that the
// drain misses has found `queued` clear, and its slab is pushed again.
//
// The set has a bit for each granule of the slab, not for each block: so it keeps its meaning when
// the slab morphs. A block in it is in use as far as its slab knows; so a slab with such blocks is
// not entirely free, and is not destroyed. The slab may change its bin while it is queued. Who
// finds it in the wrong bin's queue pushes it to the right one.
//
// A pinned block is free durably before it may be handed out. Its free goes to a deallocation log
// (media/log/dealloc.h) and queues its slab; the drain first has the logs synced, which puts their
// blocks into the sets.
//
// The sets are volatile. After a crash the collector finds what is free.
#ifndef PM_RETURNS_H
#define PM_RETURNS_H

#include "bin.h"

// ---- under the bin's lock -----------------------------------------------------------------------

// Returns the blocks at the start of `blocks` that lie in the slab of the first, and says how many.
// They are all of class `cls`. An entirely free slab may be destroyed at once.
unsigned pm_return_run(struct pm_arena *arena, struct pm_bin *bin, unsigned cls, void **blocks,
                       unsigned count);
// Makes blocks of the current class out of old blocks that have been freed (morph.h). Where a flush
// waits, also in other slabs of the bin's list.
void pm_return_sync(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab);

// ---- from another node --------------------------------------------------------------------------

// Reserves the remote sets, if there are several nodes. False: there is no address space.
bool pm_remote_init(void);
// Returns the block at `p` to its slab's remote set. Its tag is cleared already. Takes no lock.
void pm_remote_free(const void *p);
// The same of a pinned block, on media durably, by a thread of `node`. Takes a lock that few
// threads of its node take.
void pm_remote_free_pinned(const void *p, unsigned node);
// Whether slabs of the bin are queued. Read without the lock, as a hint.
static inline bool pm_remote_any(const struct pm_bin *bin) {
    return atomic_load_explicit(&bin->remote, memory_order_relaxed) != 0;
}
// Returns all blocks of queued slabs. The bin is locked. True: a slab has gone on to another bin's
// queue.
bool pm_remote_drain(struct pm_arena *arena, struct pm_bin *bin);
// Drains all bins. No bin is locked.
void pm_remote_drain_all(void);
// In a forked child: the other threads are gone, amid whatever they did.
void pm_remote_orphans(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Deallocation logs (PMAlloc, section 6.2): a pinned block that is freed on another NUMA node is
// recorded on the freeing thread's own node, and its bit is cleared later, with others.
//
//   free    entry in a log of the thread's node       durable: the block is free after a crash
//   sync    the bits of all entries are cleared       durable
//           the log's next generation                 durable: no entry is in force
//           the blocks go to their slabs' remote sets, and may be handed out again
//
// So an entry in force is of a block that nobody has been given since. An end of the process or of
// the power within a sync leaves entries whose bits may be clear already; recovery clears them.
//
// Lock: each log has one. A thread takes a log of its node that is free, so threads seldom meet.
#ifndef PM_DEALLOC_H
#define PM_DEALLOC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/message.h"

// Called with the log's lock held, for each block whose free is complete.
typedef void pm_dealloc_freed_fn(const void *block);

// A pinned block that was freed: where its bit is (media/pinned.h), and its mask.
struct pm_dealloc {
    uint64_t place;
    uint32_t mask;
    const void *block;
};

// Makes room for what is volatile, where there are several nodes. False: there is no memory.
bool pm_dealloc_init(void);
// Records a free durably, in a log of shard `shard`. Where all of that shard's logs are full, it
// syncs one. Off media the free is complete at once.
void pm_dealloc_add(unsigned shard, const struct pm_dealloc *freed, pm_dealloc_freed_fn *fn);
// Syncs all logs that have blocks of a node's memory.
void pm_dealloc_sync(unsigned node, pm_dealloc_freed_fn *fn);
void pm_dealloc_sync_all(pm_dealloc_freed_fn *fn);

// For forks and the end of the program.
void pm_dealloc_each_lock(void (*step)(struct pm_lock *));

// ---- for recovery ----

// Reads and checks all logs.
int pm_dealloc_check(struct pm_error *err);
// Clears the bits of all entries in force, and ends these. The logs are durable as they are, and so
// are the stores of publishes (pm_lanes_finish()): those may have set such a bit again.
void pm_dealloc_finish(void);
// The bits of the pinned blocks' word at `place`, as they will be then; `bits` are those on media.
uint32_t pm_dealloc_pinned(uint64_t place, uint32_t bits);

#endif

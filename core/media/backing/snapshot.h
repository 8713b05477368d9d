// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A snapshot: what the data files had at one instant of a heap in commit mode, while the program
// goes on. The files change only where a commit is applied, so the snapshot is a second private
// mapping of them, and each page is copied there just before the commit overwrites it:
//
//   commit applied   for each page it changes: a store to the snapshot's page, which the kernel
//                    copies; then the write to the file
//   reader           a page shows the file or its copy. Both are as of the instant.
//
// Memory: the pages that commits change while the snapshot exists. A data file is not truncated
// meanwhile, for that would discard copied pages, too (pm_shard_pin).
//
// One thread takes, reads and drops it. Keeping may run in another thread at the same time as
// reading, but not as taking or dropping; whoever drops it sees to that.
#ifndef PM_SNAPSHOT_H
#define PM_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "backing.h"

// NULL: there is no snapshot. Else where byte 0 from pm_base stands in it.
extern char *pm_snapshot;

// Takes it now. The heap is PM_HEAP_JOURNALED, and no commit is being applied. False, with errno:
// no memory or no descriptor.
bool pm_snapshot_take(void);
void pm_snapshot_drop(void);
// In a forked child: the mapping is not there, and the parent's lock is given up.
void pm_snapshot_forked(void);

// Called before pages of a shard's data file change: copies them. `first` counts from the file's
// start. Pages that never were written need no copy. Pages that cannot be read are noted.
void pm_snapshot_keep(struct pm_written *known, unsigned shard, uint64_t first, uint64_t pages);
// Called before bytes are read that are no hole. A bad block, or a file that was cut, is a SIGBUS
// in a mapping, and its handler is the program's. So the kernel is asked for each page before the
// first look at it. False: it cannot be read. Before Linux 5.14 the kernel does not know.
bool pm_snapshot_load(const void *bytes, uint64_t len);
// An address that could not be read or copied: the snapshot is not whole. NULL: there is none.
const void *pm_snapshot_unreadable(void);
// As pm_heap_next_data(), for the snapshot: also what is a hole by now.
uint64_t pm_snapshot_next_data(struct pm_written *known, uint64_t *offset, uint64_t end);

#endif

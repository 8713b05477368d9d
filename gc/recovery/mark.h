// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Parallel conservative marking. An aligned word that, taken as an address, points anywhere into an
// allocated block keeps that block. The marks are the bits of the slabs' populations (population.h)
// and pm_extent.marked. So the only memory that grows with the heap is 5 bytes for each 64 KiB: an
// index of 4 bytes, and a byte that notes an overflow.
//
// Calls come from one thread, in the order of this file. Nobody else uses the heap meanwhile.
#ifndef PM_MARK_H
#define PM_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "roots/program.h"
#include "roots/root_table.h"

// Called from time to time by long work, with the name of its stage. `done` of about `total` units
// are done.
typedef void pm_progress(const char *stage, uint64_t done, uint64_t total);

struct pm_mark_options {
    unsigned markers;       // threads; 0: as many as processor cores
    struct pm_stray *stray; // filled with counts; NULL: nothing is counted
    pm_progress *progress;  // called from one thread; may be NULL
    bool held;              // marks held slabs and extents alone (blocks/kinds.h)
    bool beside;            // marks the snapshot (beside.h): by pm_mark_some(), without counts
};

// Prepares marking. Extents and slabs have been adopted. Clears all marks.
int pm_mark_begin(const struct pm_mark_options *options, struct pm_error *err);
// Marks what the words of a root point to. Stray words are counted among those that are restored.
void pm_mark_root(const struct pm_root_bytes *root, void *unused);
// The same for a block of the heap that is not held.
void pm_mark_block(const void *block, uint64_t len);
// Marks everything reachable. Returns how often a mark stack overflowed.
uint64_t pm_mark_run(void);
// For forms (marking/forms.h) that are looked for from now on: another pm_mark_run() will scan all
// that is marked once more. The roots are the caller's.
void pm_mark_again(void);
// The same in steps, for `beside`: scans about `bytes` bytes. False: everything is marked.
bool pm_mark_some(uint64_t bytes);
// Frees what pm_mark_begin() reserved. The marks stay, but not the marks of `beside`.
void pm_mark_end(void);

#endif

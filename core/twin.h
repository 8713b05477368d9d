// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A second heap with the same contents, beside the first: HEAP.PID. For a forked child, while its parent waits and
// nobody changes the first one.
//
//   HEAP.PID/superblock.new   ->  data, slabs, log, ...    ->  superblock      the name comes last, complete: a child
//   locked by the child                                                        killed on the way leaves no heap
#ifndef PM_TWIN_H
#define PM_TWIN_H

#include <stdbool.h>

#include "message.h"

// Makes it and maps it in place of the first one; the process owns it from now on. The first one's locks are still
// held, as far as fork has handed them down. On failure nothing has changed and nothing is left on disk. All locks held,
// or one thread.
int pm_twin_make(struct pm_error *err);

// What then becomes of the two:
// the twin is a heap of its own ...
void pm_twin_part(void);
// ... or takes the place of the first one, which is removed: its owner has ended. Where that cannot be, the twin keeps
// its own name, and `err` says why.
int pm_twin_take_place(struct pm_error *err);

#endif

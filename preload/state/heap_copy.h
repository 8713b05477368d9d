// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap copy: a second heap with the same contents, HEAP.PID, beside the first one. A forked child
// makes it while its parent waits, so nobody changes the first heap meanwhile. A process whose
// heap's files were removed makes one while its threads are held (removed.h).
//
//   lock HEAP.PID  ->  superblock.new  ->  heap.0, slabs.0, booklog.0, ...  ->  superblock
//
// The superblock gets its name last. A child that is killed before that leaves a remnant, no heap.
#ifndef PM_HEAP_COPY_H
#define PM_HEAP_COPY_H

#include <stdbool.h>

#include "base/message.h"

// Makes the copy and maps it in the place of the first heap. From then on the process owns the
// copy. It still shares its parent's lock on the first heap, which it has inherited. On failure
// nothing has changed, and nothing is left on disk. Called with all locks held, or without other
// threads.
int pm_heap_copy_make(struct pm_error *err);

// After that the copy either stays a heap of its own: the inherited lock is given up ...
void pm_heap_copy_part(void);
// ... or it takes the name of the first heap, whose owner has ended, and the first heap is removed.
// On failure the copy keeps its own name, and `err` says why.
int pm_heap_copy_take_place(struct pm_error *err);

#endif

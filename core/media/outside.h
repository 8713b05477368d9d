// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A record of what the process has mapped outside of its heap: stacks, and what the program itself
// has mapped by mmap(). It is in the heap, because it is needed when the process is no more: words
// of live blocks that lead there are good for nothing then, and somebody should say so.
//
// It costs a few stores for each mmap() and each thread, and for a file a readlink() to know its
// name. Nothing is flushed: a kill leaves it, and after a power failure it may be older. There is
// room for 9 files and 4 pieces of anonymous memory. The oldest ones go first.
#ifndef PM_OUTSIDE_H
#define PM_OUTSIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "outside_format.h"

// The heap is this process's from now on, and what its last one had is forgotten.
void pm_outside_begin(void);
// The program has mapped these bytes: a file, or with fd -1 anonymous memory. Keeps errno.
void pm_outside_map(const void *at, size_t len, int fd);
// A new thread has its stack here.
void pm_outside_thread(const void *frame);
// A filter of the program's may forbid readlink(): names are not asked for any more.
extern _Atomic bool pm_outside_nameless;

// The ranges on record, in the order of the addresses' certainty: what comes first is taken.
unsigned pm_outside_read(struct pm_outside_range out[PM_OUTSIDE_RANGES]);
// Whether an address may lie in a file that is on record no more, for lack of room.
bool pm_outside_was_forgotten(uint64_t address);
// Whether somebody has looked already at what leads there; that it is so.
bool pm_outside_looked(void);
void pm_outside_note_looked(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The end of a heap beside other threads. They are held (threads/hold.h) at an instant at which
// none of them is within the allocator, nor amid a critical section (threads/commit_gate.h). Then
// this thread does what it would do alone: what their caches have goes back to the slabs, and the
// heap is closed cleanly.
//
//   lock of commits   in commit mode: nobody else is amid a commit at the instant
//   gate, hold        as a commit does; where no commit is made, locks are counted from here on
//   look              a thread that is amid a slow path has to go on first: once more
//
// A thread that holds one of the program's locks for ever, or computes without end, does not
// prevent it: then the instant is any, between two of its instructions. A thread does prevent it
// that cannot be held: it blocks our signal, a debugger has stopped it, it waits for a dead disk.
#ifndef PM_END_HELD_H
#define PM_END_HELD_H

#include <stdbool.h>

// A thread that holds a lock of ours waits for this end, so its lock is not waited for.
extern _Atomic bool pm_end_lock_waits;

enum pm_end_hold {
    PM_END_HELD,
    PM_END_NOT_STILL, // a thread does not come to rest
    PM_END_NOT_HERE,  // here none is held: a filter forbids it, /proc is not seen, or no memory
};

// The caller holds no lock, and PMAlloc's own thread has ended. `between` becomes whether the
// others are between operations. It may allocate nothing, and take no lock of the program's, before
// pm_end_release().
enum pm_end_hold pm_end_hold(bool *between);
void pm_end_release(void);

#endif

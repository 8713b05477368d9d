// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What becomes of the heap in a fork. One process at a time writes it; PMALLOC_FORK says which goes on with it, and
// the other one gets private memory (private.h) or a heap of its own (twin.h):
//
//   private   the parent keeps the heap
//   copy      so it does; the child gets another one beside it
//   follow    the first child has it from now on, and in a double fork the last one
#ifndef PM_FORK_H
#define PM_FORK_H

#include <stdbool.h>

// Registers the handlers, for good.
void pm_fork_init(void);

// Whether children made by bare clone() or _Fork(), which skip the handlers, have nothing at the addresses of the heap
// and the root pages, and so fault rather than write their parent's heap. Does nothing to volatile memory. False where it
// cannot be had.
bool pm_fork_guard(bool on);

// Before a system call that wants the process to have one thread: a forked child may still have a copier beside.
void pm_fork_settle(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The world held still for the live collector (gc/live), and the roots that it has: stacks and
// registers of all threads, thread-local storage, root slots, and the memory of the process outside
// the heap (gc/live/process_memory.h).
#ifndef PM_WORLD_H
#define PM_WORLD_H

#include "base/message.h"
#include "live/process_memory.h"

typedef int pm_world_fn(void *arg, struct pm_error *err);
// Holds all other threads and calls `work`, which allocates nothing and takes no lock. Returns what
// it returns. PM_OPERATIONAL: a thread cannot be held, or there is no memory. The caller holds no
// lock of ours, and is not in a signal handler that has interrupted the allocator. One caller at a
// time: others wait.
int pm_world_hold(pm_world_fn *work, void *arg, struct pm_error *err);
// For `work`: calls `root` for each piece of memory that is a root.
int pm_world_roots(pm_memory_fn *root, void *arg, struct pm_error *err);
// The same without registers, for threads of a process that a tool has halted: by their stack
// pointers.
int pm_world_memory(const uintptr_t *stacks, unsigned count, pm_memory_fn *root, void *arg,
                    struct pm_error *err);

#endif

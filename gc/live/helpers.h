// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that help to mark while the program is held. They are made when there is much to mark,
// and are gone before the program goes on: it never has a thread more than it knows. So a fork, a
// program that is executed, and calls that need a process of one thread do not meet them.
//
// They are bare threads (base/bare_thread.h) with all signals blocked. Their stacks are PMAlloc's
// own memory, and no roots. They ask no allocator for anything. Where a thread cannot be made
// (`ulimit -u`, a cgroup, a seccomp filter), fewer mark, or the caller alone.
#ifndef PM_HELPERS_H
#define PM_HELPERS_H

#include <stdatomic.h>
#include <stdbool.h>

#define PM_HELPERS 15u // with the caller as many as bdwgc has at most

// A seccomp filter of the program's would end it for making one.
extern _Atomic bool pm_helpers_forbidden;

// How many markers there should be, if `wanted` are; 0: as many as processor cores.
unsigned pm_helpers_markers(unsigned wanted);
// Makes a thread: the first, the second and so on, by `number` from 1. Each calls `work` with one
// of these numbers. False: it cannot be made. All are joined before the next first one.
bool pm_helper_start(unsigned number, void (*work)(unsigned number));
void pm_helper_join(unsigned number);

#endif

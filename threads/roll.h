// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The roll: the other threads of the process, as they were listed last. To list a thread in /proc
// takes a microsecond, and where most threads sleep they are the same at the next hold. The kernel
// tells with one call how many threads there are.
//
//   Each thread on the roll is alive, and at rest.  |  Then these are all: a thread that is not on
//   The process has as many threads as the roll.    |  the roll would be one more, and one at rest
//                                                   |  neither ends nor makes another.
//
// Only the thread whose turn it is (threads.c) calls these.
#ifndef PM_ROLL_H
#define PM_ROLL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Calls `each` for every thread on the roll, after it has listed them if the roll is in doubt.
// False: the list cannot be read.
bool pm_roll_each(void (*each)(pid_t id, void *arg), void *arg);
// Compares the number of threads (of tasks.h; 0: not known) with the roll. False: the roll is in
// doubt from here on.
bool pm_roll_counts(size_t threads);
// Whether there was another thread at the last look, and nobody knows better.
bool pm_roll_has_any(void);
// A thread on it has ended, or it is not known which there are.
void pm_roll_doubt(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The locks of <pthread.h> and <threads.h>, and what those of other libraries share with them.
#ifndef PM_LOCKS_H
#define PM_LOCKS_H

// Finds libc's common functions. Called at load, before the program can have an error of dlopen().
void pm_locks_find(void);
// The next function of this name. Without one the program cannot run.
void *pm_locks_next(const char *name);
// The first use of an old lock in this run: clears it.
void pm_locks_adopt(void *object, void (*reset)(void *object));

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The locks of <pthread.h> and <threads.h>.
#ifndef PM_LOCKS_H
#define PM_LOCKS_H

// Finds libc's common functions. Called at load, before the program can have an error of dlopen().
void pm_locks_find(void);

#endif

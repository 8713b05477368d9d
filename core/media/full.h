// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A file system without room. A request that it refuses gets NULL, and a line says why.
#ifndef PM_FULL_H
#define PM_FULL_H

#include <stdbool.h>
#include <stddef.h>

// The file system has refused space, with ENOSPC or EDQUOT.
void pm_full_note(int error);
// A request of the program has failed. If the file system has refused space, says so: at the first
// time, and then once in 10 seconds at most. No lock is held.
void pm_full_say(void);
// Whether a store to this address of the heap has failed because its file system is full. Says so,
// then. It may be called in a signal handler.
bool pm_full_explains(const void *at);

#endif

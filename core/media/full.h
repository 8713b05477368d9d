// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A file system without room, or a heap at its limit. A request that it refuses gets NULL, and a
// line says why.
#ifndef PM_FULL_H
#define PM_FULL_H

#include <stdbool.h>
#include <stddef.h>

#define PM_FULL_LIMIT (-1)
#define PM_FULL_ADDRESSES (-2)
// The file system has refused space, with ENOSPC or EDQUOT; or PM_FULL_LIMIT, the heap's limit has;
// or PM_FULL_ADDRESSES, this process has no addresses for another data file.
void pm_full_note(int error);
// A request of the program has failed. If space was refused, says so: at the first
// time, and then once in 10 seconds at most. No lock is held.
void pm_full_say(void);
// Whether a store to this address of the heap has failed because its file system is full. Says so,
// then. It may be called in a signal handler.
bool pm_full_explains(const void *at);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The lock of a heap, and whose it is.
#ifndef PM_HEAP_LOCK_H
#define PM_HEAP_LOCK_H

#include <stdbool.h>

#include "media/heap.h"

// Locks a directory or a superblock: shared for PM_OPEN_READONLY, not for those after it, else
// exclusively. If another process has the lock, waits if `wait` is set, else fails; the error
// says so (pm_is_busy).
int pm_dir_lock(int fd, enum pm_open_mode mode, bool wait, struct pm_error *err);

// Whether the owner has ended although the heap is locked. The start time tells it from a later
// process with the same number. False where /proc does not tell.
bool pm_holder_is_gone(const struct pm_holder *holder);

#endif

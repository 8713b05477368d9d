// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Brings pages into memory by calls that can fail, where a load or a store would end the process:
// the disk cannot read the block, the program has made the page unreadable, or has put a guard
// there.
//
// Linux has MADV_POPULATE_READ and MADV_POPULATE_WRITE since 5.14. Until 6.9 they do not return
// where a block cannot be read: the kernel reads it again and again. So there, and where there are
// no such calls, each page is first read by a call that copies a few bytes of it.
#ifndef PM_POPULATE_H
#define PM_POPULATE_H

#include <stdbool.h>
#include <stddef.h>

// As loads would, or as stores would (which of them, advice says). 0, or a negative errno: EFAULT
// or EHWPOISON say that a load or a store would end the process; EINVAL that this kernel cannot do
// it as stores would. It may be called by a bare thread, and by a thread that holds others.
long pm_populate(const void *at, size_t len, int advice);
// Whether the result says so.
bool pm_populate_refused(long result);

#endif

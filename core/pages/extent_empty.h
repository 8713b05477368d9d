// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pages of blocks in use become zeroes, because the program has asked for that (MADV_DONTNEED).
#ifndef PM_EXTENT_EMPTY_H
#define PM_EXTENT_EMPTY_H

#include "extent.h"

// Makes the pages of [offset, offset + len) that lie in active extents read as zeroes. Both are
// whole pages. An extent that has all its space keeps it; another, which is huge and was only
// promised its space (PMALLOC_RESERVE=lazy), gives it back. In a signal handler that interrupts the
// allocator all of it keeps its space.
void pm_extent_empty(uint64_t offset, uint64_t len);

#endif

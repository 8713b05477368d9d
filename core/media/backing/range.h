// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How many addresses the heap of this process may use.
#ifndef PM_RANGE_H
#define PM_RANGE_H

#include <stdbool.h>

// Chooses the largest range for which, with its tables, this process has address space. False: even
// the smallest useful one does not fit. `directories`: a heap may lie in several (volume.h).
bool pm_heap_choose_range(unsigned directories);
// After pm_heap_open(), which knows the heap's own limit and its directories. The range becomes one
// of at least `shards` shards, and of as many as they ask for, if there is room. Whether it is a
// larger one now.
bool pm_heap_widen_range(unsigned shards);

#endif

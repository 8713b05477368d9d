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

#endif

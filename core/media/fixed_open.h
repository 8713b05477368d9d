// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finds and opens a heap on a fixed medium.
#ifndef PM_FIXED_OPEN_H
#define PM_FIXED_OPEN_H

#include "fixed.h"

#define PM_NO_FIXED (-1)

// Opens `pm_heap.dir` into *fd, if that is a file or device, and checks that it holds a heap. The
// descriptor is open on failure, too, or -1. PM_NO_FIXED: it is neither, and nothing was done.
int pm_fixed_find(bool readonly, int *fd, struct pm_error *err);
// With the lock: checks the layout, maps the head and gives the parts to pm_heap.
int pm_fixed_open(struct pm_error *err);

#endif

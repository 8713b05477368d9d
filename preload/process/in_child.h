// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A child of its own that reads the heap, which this process has open and not mapped: what an
// opening builds in memory cannot be emptied again. The child shares no memory with us, and the
// kernel sends no signal when it ends. So the program notices nothing of it.
#ifndef PM_IN_CHILD_H
#define PM_IN_CHILD_H

#include <stddef.h>

#include "base/message.h"

// Calls `work` in the child, with the heap mapped. `result`: `size` bytes that the child sees, and
// what it makes of them. Returns the status of `work`, with its errno. PM_DAMAGE: the child has
// died.
int pm_in_child(int (*work)(void *result, struct pm_error *err), void *result, size_t size,
                struct pm_error *err);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc_open() leaves the program as it was if the heap is bad.
#ifndef PM_OPEN_CHECK_H
#define PM_OPEN_CHECK_H

#include "base/message.h"

// Whether the heap, which is open and not mapped, can be opened in mid-program. Changes nothing.
int pm_open_check(struct pm_error *err);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap that the user has named, and that no root reaches: nothing of it is found again. One line
// says at the end what is thrown away, and at a start what was. PMALLOC_ROOTLESS=quiet silences it.
#ifndef PM_ROOTLESS_H
#define PM_ROOTLESS_H

#include <stdbool.h>

#include "recovery/recover.h"

// A default heap has a name only for its roots, so nobody looks for data there.
void pm_rootless_say_start(bool default_heap, const struct pm_recovery *recovery);
// Before the end of the program, when no heap is parted from yet.
void pm_rootless_say_end(bool default_heap);

#endif

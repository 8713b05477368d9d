// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_WARN: a line before requests are refused, while there is time to do something.
#ifndef PM_NEARLY_FULL_H
#define PM_NEARLY_FULL_H

#include <stdint.h>

// Looks ten times in a second at most, and says so where more is in use than the setting allows: of
// the heap's limit, or of the file system that has the most room of those that it lies on. The next
// line comes when half of what was left then is in use. No lock is held. `now`: in milliseconds.
// Changes errno.
void pm_nearly_full_look(uint64_t now);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_TOOLS_OPEN_IN_USE_H
#define PM_TOOLS_OPEN_IN_USE_H

#include "base/message.h"

// Opens a heap without a lock (PM_OPEN_LOOK), whose owner goes on. One that is being made or opened
// is not whole at times, so it tries for a tenth of a second.
int open_in_use(const char *heap, struct pm_error *err);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc_close(): the clean end of a heap that pmalloc_open() has opened, in mid-program.
#ifndef PM_NAMED_CLOSE_H
#define PM_NAMED_CLOSE_H

#include <stdbool.h>

// The process goes on with private copies of its blocks, and gives up the lock. False: errno says
// why, and nothing has changed.
bool pm_process_close(void);

#endif

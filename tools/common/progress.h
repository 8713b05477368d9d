// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Shows the progress of a recovery on one line of the terminal. Shows nothing if standard error is
// no terminal.
#ifndef PM_TOOLS_PROGRESS_H
#define PM_TOOLS_PROGRESS_H

#include "recovery/mark.h"

// Returns the function to pass to the recovery; NULL: there is no terminal.
pm_progress *progress_start(void);
// Clears the line. Call it before anything else is printed.
void progress_end(void);

#endif

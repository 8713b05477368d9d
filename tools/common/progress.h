// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The progress of a recovery on one line of the terminal; nothing where standard error is none.
#ifndef PM_TOOLS_PROGRESS_H
#define PM_TOOLS_PROGRESS_H

void progress_start(void);
// Wipes the line. To be called before anything else is printed.
void progress_end(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap is read through mappings while it is opened. A block that the disk cannot read, or a file
// that is cut meanwhile, is a SIGBUS there. It becomes a message, and the start is refused.
//
// In a program that runs its own handler must be in force, so ours is there during an opening
// alone: from before the heap is looked for until its roots are captured. All threads of recovery
// have it.
#ifndef PM_BAD_READ_H
#define PM_BAD_READ_H

#include "base/message.h"

// Between the two a SIGBUS in a file of the heap ends the process with PM_EXIT_START. Any other one
// goes where it would have gone.
void pm_bad_reads_begin(void);
void pm_bad_reads_end(void);
// In a child of its own, which only looks at the heap: fills `told` and ends with status 0.
void pm_bad_reads_tell(struct pm_error *told);

#endif

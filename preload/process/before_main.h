// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The last of the start, when all constructors have run: roots are captured and restored, and the
// first commit is made.
#ifndef PM_BEFORE_MAIN_H
#define PM_BEFORE_MAIN_H

// main is called next. Once.
void pm_process_before_main(void);
// READY -> RUNNING, also for a heap that is opened later, by pmalloc_open().
void pm_process_begin_main(void);

#endif

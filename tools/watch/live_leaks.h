// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --leaks PID: blocks of a program that runs that nothing reaches.
#ifndef PM_TOOLS_LIVE_LEAKS_H
#define PM_TOOLS_LIVE_LEAKS_H

#include <stdbool.h>
#include <sys/types.h>

// Whether an operand is the number of a process, and no directory has this name. 0: it is not.
pid_t live_leaks_process(const char *operand);
// Prints them, or one line that says why not. Returns an enum pm_status.
int live_leaks(pid_t pid, bool json);

#endif

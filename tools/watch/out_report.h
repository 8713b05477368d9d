// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --out: words that lead out of a heap, of one at rest or of a process that runs.
#ifndef PM_TOOLS_OUT_REPORT_H
#define PM_TOOLS_OUT_REPORT_H

#include <stdbool.h>
#include <sys/types.h>

// Of the open heap, which was marked.
int out_of_heap(const char *heap, bool json);
// Of a process. It is halted meanwhile, and goes on as if nothing had been. Nothing is written. The
// report is printed when it goes on.
int out_of_process(pid_t pid, bool json);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --holders: which variables hold the data (tools/common/holders.h).
#ifndef PM_TOOLS_HOLDERS_REPORT_H
#define PM_TOOLS_HOLDERS_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// Of the process that has a heap open. Its threads are stopped while its variables and its heap are
// read. `most` words are shown. Returns the exit status.
int holders_of_process(pid_t pid, uint32_t most, bool json);
// Of the open heap: the words of its roots. pm_recover() has checked it, and no more.
int holders_of_heap(const char *heap, uint32_t most, bool json);

#endif

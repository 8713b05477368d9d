// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --blocks of a process that runs. It is halted while its heap is read and marked, and
// goes on as if nothing had been. Nothing is written. The list is printed when it goes on.
#ifndef PM_TOOLS_BLOCKS_REPORT_H
#define PM_TOOLS_BLOCKS_REPORT_H

#include "tools/common/block_list.h"

int blocks_of_process(pid_t pid, struct block_list *b);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Space in reserve, PMALLOC_SPARE: the file `spare` in the heap's directory has it, and nothing
// else. When the file system is full, a tool removes the file, and the program has room at once.
#ifndef PM_SPARE_H
#define PM_SPARE_H

#include <stdint.h>

#include "base/message.h"

// How much space is in reserve now.
uint64_t pm_spare_bytes(void);
// For a tool, which may set it while a program has the heap open, or while none has. 0: the file is
// removed.
int pm_spare_set(uint64_t bytes, struct pm_error *err);
// At the start of a program. What is there already stays as it is, if it is enough. A start that
// would leave less than it takes, takes nothing, and says so: else the start after the tool's call
// would take from the program what it was given.
void pm_spare_begin(void);

#endif

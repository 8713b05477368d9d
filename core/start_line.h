// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The line of PMALLOC_VERBOSE=1: one a process, just before main.
//
//   pmalloc: heap DIR (BACKING: GUARANTEE); roots: COUNT (NAMES); new|emptied|clean|recovered...
//   pmalloc: volatile memory: nothing is kept: REASON
#ifndef PM_START_LINE_H
#define PM_START_LINE_H

#include "choice.h"
#include "collector.h"

void pm_start_line(const struct pm_choice *choice, const struct pm_recovery *recovery);

#endif

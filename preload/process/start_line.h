// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The line of PMALLOC_VERBOSE=1. A process prints it once, just before main.
//
//   pmalloc: heap DIR (BACKING: GUARANTEE); roots: COUNT (NAMES); new|emptied|clean|recovered...
//   pmalloc: heap DIR, private: ...; roots: COUNT (NAMES); clean: ...
//   pmalloc: volatile memory: nothing is kept: REASON
#ifndef PM_START_LINE_H
#define PM_START_LINE_H

#include "choose.h"
#include "recovery/recover.h"

void pm_start_line(const struct pm_chosen *chosen, const struct pm_recovery *recovery);

#endif

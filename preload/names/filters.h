// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Before and after the system calls prctl and seccomp with these arguments. False: the call
// installs no filter, and nothing is to be done after it.
#ifndef PM_FILTERS_H
#define PM_FILTERS_H

#include <stdbool.h>

#include "process/sandbox.h"

bool pm_filters_before(struct pm_sandbox *s, long number, const long *argument);
void pm_filters_after(const struct pm_sandbox *s, long number, const long *argument, long result);

#endif

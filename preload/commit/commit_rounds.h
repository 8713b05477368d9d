// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The rounds before the instant of a commit (media/commit/rounds.h): how many there are. They go on
// until little is left for the instant, or as much as before twice over: while a program becomes
// larger, a later round may find more than an earlier one.
#ifndef PM_COMMIT_ROUNDS_H
#define PM_COMMIT_ROUNDS_H

#include <stdbool.h>

// With the commit lock.
void pm_commit_rounds(void);
// Whether there would be any.
bool pm_commit_rounds_worth(void);

#endif

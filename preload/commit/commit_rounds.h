// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The rounds before the instant of a commit (media/commit/rounds.h): how many there are. They go on
// until little is left for the instant, or as much as before twice over: while a program becomes
// larger, a later round may find more than an earlier one.
//
// A GiB in a round takes seconds on a slow disk. Who waits for the commit lock meanwhile, and does
// not want a commit, goes first: a fork, and the end of the program. The round ends after the 8 MiB
// that it is at, and what it has found besides is not lost. The commit goes on when they have
// passed; there is no instant before that. A program that forks all the time does not keep its
// commits off for ever: CUTS_MOST. The end of PMAlloc's own thread is not waited for so long.
#ifndef PM_COMMIT_ROUNDS_H
#define PM_COMMIT_ROUNDS_H

#include <stdbool.h>

// With the commit lock. False: somebody waits, so give the lock up and try again.
bool pm_commit_rounds(void);
// With the commit lock. Whether more may have changed since the last instant than one may look at.
bool pm_commit_rounds_needed(void);
// Whether there would be any.
bool pm_commit_rounds_worth(void);
// For pm_rounds_awaited.
bool pm_commit_rounds_awaited(void);
// Without the lock: who waits gets it. False: PMAlloc's own thread is to end.
bool pm_commit_rounds_let_pass(void);
// For who is about to take the lock for a commit: one that has given it up for others is not to
// have it taken by him.
void pm_commit_rounds_make_way(void);
// From here on PMAlloc's own thread is to end, or no longer.
void pm_commit_rounds_stop(bool on);

#endif

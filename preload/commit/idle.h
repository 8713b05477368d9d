// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COMMIT=idle[:TIME]: commits while the program waits. The program is idle when each of its
// threads is in a call that waits: for input, for time, for a condition, for another thread. Then
// none of its operations is half done.
//
//   a thread enters a wait  -> counts itself, and wakes the thread pmalloc-commit if that sleeps
//   pmalloc-commit          -> all are in a wait? makes rounds if much has changed, and asks again;
//                              holds them (hold.h), looks again, takes the instant, lets them go,
//                              and makes it durable while they wait or work
//
// So the program is not delayed by the disk, nor by how much has changed: rounds (commit_rounds.h)
// hold nobody. A wait that is over at once is not noticed: requests that come one upon another are
// one commit. A program that finds work at each wait would never be seen idle. After BUSY_MS
// without a commit (or TIME, if that is longer) the thread that waits last waits for the instant
// first, before its call; if much has changed, not this time, but after rounds. A model of that:
// tests/models/idle_instant.pml.
//
// The counts are hints: a thread that is cancelled in a wait stays counted. The look at the held
// threads decides.
#ifndef PM_IDLE_H
#define PM_IDLE_H

#include <stdbool.h>
#include <stdint.h>

// Around a call that waits. `may_commit`: the thread may wait for an instant here.
void pm_idle_enter(bool may_commit);
void pm_idle_leave(void);

// For the thread pmalloc-commit: makes the commit that is due. Returns how long to sleep at most
// unless something happens after pm_idle_seen() was read.
uint64_t pm_idle_work(void);
uint32_t pm_idle_seen(void);
void pm_idle_sleep(uint32_t seen, uint64_t ms);
void pm_idle_wake(void);
// In a forked child: its one thread is in no wait.
void pm_idle_forked(void);

#endif

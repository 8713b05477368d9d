// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_BACKGROUND=decay: a thread of PMAlloc's gives back over time what is free (blocks/age.h),
// also while the program asks for nothing.
//
//   works, waits a sixteenth of the decay time, works ...      while anything happens
//   sleeps without a timeout       after twice the decay time in which nothing happened; the next
//                                  slow request wakes it
//
// In commit mode it also makes the commits of PMALLOC_COMMIT=TIME, and those that too many changed
// pages force (commit_bound.h).
//
// The program does not see it. It is a bare thread (base/bare_thread.h) with thread-local storage
// of its own, so that it can take locks and make system calls as any thread does: libc does not
// count it, no signal goes to it, and each look that PMAlloc takes at the process's threads leaves
// it out (pm_os_own_thread). It works under pm_age_lock, which a fork and the end of the program
// take first. So they never find it in the middle of something.
//
// In commit mode, and while late roots are awaited, the looker is there beside it (base/looker.h).
// That one is left to the end of the process, since the last commit asks it, too.
//
// A forked child gets one if it has a heap on media. It ends for the time of calls that the kernel
// refuses to processes of several threads.
#ifndef PM_BACKGROUND_H
#define PM_BACKGROUND_H

#include <stdbool.h>

// Starts the thread if PMALLOC_BACKGROUND asks for it. Says so if it cannot.
void pm_background_start(void);
// Ends the thread and waits for it, if it does not take long: false, it still runs. A thread that
// holds a lock of the allocator must not call this.
bool pm_background_stop(void);
// Whether there is one.
bool pm_background_runs(void);
// For a call that needs a process of one thread: ends the thread and the looker, if there is one,
// and starts both again after the call. errno is kept.
bool pm_background_pause(void);
void pm_background_go_on(bool paused);
// In a forked child: the thread is not there.
void pm_background_forked(void);

#endif

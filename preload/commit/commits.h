// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Commits of this process (media/commit/commit.h says how; commit_mode.h, when), and what they mean
// at a fork and at the end of the program.
//
// There is a commit when the roots are captured, before main. There is one at the end of the
// program, before the heap is closed.
#ifndef PM_COMMITS_H
#define PM_COMMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "commit_mode.h"

// Once the heap is recovered: from here on all its changes go through commits.
int pm_commits_begin(bool alone, struct pm_error *err);

// Makes a commit. 0, or an errno: ENOTSUP if the heap is not in commit mode, or a seccomp filter
// has ended that (sandbox.h); EDEADLK in a signal handler that has interrupted the allocator;
// EAGAIN if a thread could not be held; else what the file system said. Then the last commit
// stands.
int pm_commits_make(void);
// How many instants there were, and the last one whose commit is in force.
uint64_t pm_commits_instants(void);
uint64_t pm_commits_covered(void);
// Makes sure that a commit is in force with a later instant than `before`: that of another thread,
// if there is one. Says once that commits fail; they are tried again at the next call.
void pm_commits_cover(uint64_t before);
// The same, for what is to leave first. Then pm_commits_bring() brings the commit to the files. If
// another thread makes a commit meanwhile, that one begins so.
void pm_commits_cover_first(uint64_t before);
void pm_commits_bring(void);
// Why a commit has failed.
const char *pm_commits_reason(int error);
// For PMAlloc's thread: makes a commit if each other thread is in a call that waits. EBUSY: one is
// not, or another commit is being made. Says once that commits fail.
int pm_commits_idle(void);
// Also for it: makes the rounds of the next commit (commit_rounds.h), while threads run. False: not
// much has changed.
bool pm_commits_look_ahead(void);
// Waits a little for the next instant. The calling thread is in a call that waits meanwhile.
void pm_commits_await_instant(void);
// The same as pm_commits_make() for PMAlloc's thread, which must not wait for another commit. Says
// once that commits fail. False: it is worth another try soon, as another one is being made, a
// thread does not stop, or, where commits are made by time, one did not leave its section: for a
// second no commit is made then, as an older instant between operations is better than any.
bool pm_commits_by_time(void);

// Also for PMAlloc's thread: makes commits if too many pages have changed (commit_bound.h).
void pm_commits_by_bound(void);

// No commit is being made when this returns, and there are none from here on; or there are again.
void pm_commits_stop(bool on);
bool pm_commits_are_stopped(void);

// The last commit, at the end of the program. No thread stores anything. Not `alone`: the caller
// holds all locks. `between`: it lies between operations. False: the heap stays as an earlier
// commit left it, and a line says so.
bool pm_commits_end(bool alone, bool between);
// There can be none, and a line says so.
void pm_commits_no_end(void);

// In a forked child, where nothing else runs yet. `commits`: it goes on to make them.
void pm_commits_forked(bool commits);

#endif

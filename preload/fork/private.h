// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Private memory in place of the shared heap, at the same addresses. A forked child gets it, and so
// does a process at its end, which must not change its heap any more.
//
//   extents   [ active | free | active, lazy  . . . ]      shared mapping of heap.0
//   private   [ heap.0 | anon | heap.0 | anon | heap.0 ]   data: MAP_PRIVATE; the rest: anonymous
//
// At first nothing is copied. The kernel copies a page when the process first stores to it. Until
// then the process sees what other processes store to that page of the file; see pm_private_runs().
#ifndef PM_PRIVATE_H
#define PM_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_PRIVATE_RUNS_MAX 8192u // two mappings each; the kernel allows 65,530 in all

struct pm_private_run {
    uint64_t offset, len; // bytes from pm_base
};

// For one side of a fork. Replaces the mapping of the data by private memory with the contents of
// the extents in use, and parts the process from the heap (PM_HEAP_PARTED). If there would be too
// many mappings, or mapping fails, or the file is out of reach, everything is copied at once. The
// caller sees to the root pages (pm_roots_privatise), the files and the lock (pm_heap_release).
// Called with the extent lock held, or without other threads. `others`: other threads run on.
//
// False: there is no memory for it. The whole range can still be read, and is shared at least in
// part.
bool pm_private_enter(bool others);

// The same at the end of the program. It takes effect at one instant for all bytes: later stores of
// any thread stay in this process. The caller has parted the process from the heap already
// (pm_heap_become), and no thread stores meanwhile.
//   known          pm_private_find() has found the runs
//   tables_whole   the tables of extents can be read: the extent lock is held, or there is no other
//                  thread
//   alone          there is no other thread. If memory for all of it is out, each store then makes
//                  the piece around it writable. That takes faults, which other threads may not
//                  survive.
// False: nothing has changed.
bool pm_private_part(bool known, bool tables_whole, bool alone);
// The same under PMALLOC_COMMIT: memory is private already, and only its use changes.
void pm_private_keep(bool tables_whole);
// Makes the shared mapping unwritable for every thread, or writable again.
bool pm_private_hold(bool on);

// The runs: pieces of the heap that are private mappings of the file, by rising address. There are
// none once everything is copied. Each page of the runs must be copied before another process
// writes the file or punches holes into it.
const struct pm_private_run *pm_private_runs(unsigned *count);
// Forgets the runs: every page is copied, or nobody will change the file.
void pm_private_forget(void);

// Finds the runs without mapping anything. The other process of a fork has its private mappings in
// the same places. The bytes of a cached extent are nobody's, unless `others`: another thread may
// take the extent out of its cache at any moment, without a lock. False: there are too many, or the
// tables of extents are not whole.
bool pm_private_find(bool others);

// ---- private_copy.c: the copies, made before another process writes the file ----

struct pm_fork_gate;
// Makes the kernel copy every page of the runs, in the calling thread.
void pm_private_copy(void);
// Starts the copier, a thread that does this after `delay_us` and then opens the gate. The caller
// has taken the fork gate. A child that executes another program or ends before that has copied
// nothing. False: the thread cannot be started.
bool pm_private_start_copier(struct pm_fork_gate *gate, unsigned delay_us);
// Waits until the copier, if there is one, has ended, and the process has a thread less. No page
// shows the file any more then. Any thread may call this.
void pm_private_await(void);
// The same, and frees what the copier needed. Called once after pm_private_start_copier(), with all
// locks held.
void pm_private_finish_copy(void);
// Makes the kernel copy the pages of another process, from outside, while that process is stopped.
// True: all are copied. False: the process is not stopped any more, or it failed.
bool pm_private_copy_stopped(pid_t pid);

#endif

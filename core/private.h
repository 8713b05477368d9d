// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Private memory in place of the shared heap, at the same addresses: for a forked child, and for a process that has
// closed its heap and must not change it any more.
//
//   extents   [ active | free | active, lazy  . . . ]        shared mapping of heap.0
//   private   [ heap.0 | anon | heap.0 | anon | heap.0 ]     MAP_PRIVATE where there is data, else anonymous
//
// Nothing is copied at first: the kernel does it, page by page, when the process stores. Until a page has been
// copied, the process sees what others store to it in the file; see pm_private_runs().
#ifndef PM_PRIVATE_H
#define PM_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_PRIVATE_RUNS_MAX 8192u // two mappings each; the kernel allows 65,530 in all

struct pm_private_run {
    uint64_t offset, len; // bytes from pm_base
};

// Replaces the mapping of the data by private memory with the contents of the extents in use, and puts the process
// into volatile mode (pm_heap.persistent is false). Where there would be too many mappings, or they fail, or the file
// cannot be reached any more, everything is copied at once. Root pages (pm_collector.privatise), the files and the
// lock (pm_heap_release) are the caller's. Extent lock held, or no other thread.
//
// False: there is no memory for it. The mapping is still whole, and shared at least in part.
bool pm_private_enter(void);

// Makes all of it shared again, after a failure too, where nobody has stored anything meanwhile. False without memory.
bool pm_private_leave(void);

// What pm_private_enter() mapped from the file, by rising address, and how many there are: none where all has been
// copied. Where somebody else may write the file, or punch holes into it, each of their pages must be copied first.
const struct pm_private_run *pm_private_runs(unsigned *count);
// ... all of them have been, by now.
void pm_private_forget(void);

// The same runs without mapping anything: where the other side of a fork has its private memory. False: too many.
bool pm_private_find(void);

// ---- private_copy.c: the copying, where somebody else may write the file ----

struct pm_gate;
// Copies every page that is still the file's, in the calling thread.
void pm_private_copy(void);
// Has a thread of its own do it after `delay_us`, and then open the gate, which the caller holds: a child that executes
// or ends before that has copied nothing. False: there can be no such thread.
bool pm_private_copy_behind(struct pm_gate *gate, unsigned delay_us);
// Waits until that thread, if there is one, has finished: nothing is the file's any more. In any thread.
void pm_private_await(void);
// The same, and puts away what the copying needed. Under all locks.
void pm_private_settle(void);
// As long as the process `pid` is stopped, copies its pages from outside. True when that is done.
bool pm_private_copy_stopped(pid_t pid);

// Copies the page at `p` for this process alone. What another thread stores to it meanwhile is not lost. Assembly,
// because compilers leave out an addition of nothing.
static inline void pm_private_copy_page(void *p) {
    __asm__ volatile("lock addb $0, %0" : "+m"(*(char *)p)::"memory", "cc");
}

#endif

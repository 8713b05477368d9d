// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A child that the program makes by a system call instruction of its own skips the handlers of a
// fork. It finds nothing at the addresses of the heap and of captured roots (fork_exclude.h), or,
// in commit mode, its copy of them. Nobody has parted it from its parent's heap. It does so itself,
// when it first needs to:
//
//   it touches the heap or a root    SIGSEGV: the handler that hears of it is ours, also where the
//                                    program has none
//   it asks the allocator for more   each slow path looks (cancel.h)
//   it ends                          by exit(): the end of a program passes over who is no owner
//
// From there on it is as a child of fork() under PMALLOC_FORK=private. It has then the memory that
// its parent has at that moment, not the memory of the call: nobody has held the parent.
#ifndef PM_STRAY_H
#define PM_STRAY_H

#include <signal.h>
#include <stdbool.h>

// When main begins, and the process has a heap.
void pm_stray_watch(void);

// What the kernel has for SIGSEGV where the program has asked for the default. The program does not
// see it.
void pm_stray_fault(int number, siginfo_t *info, void *context);
// Puts it there, in the place of the default. False: it is not needed, or the kernel refuses it.
bool pm_stray_listen(void);

#endif

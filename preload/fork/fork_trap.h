// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc's fork() runs its own code between the system call and our handlers: it stores to its data
// of the thread, sets back the locks of all streams, and uses the stack. Any of these may lie in
// the heap, which the child still shares with its parent then. So the system call itself is
// trapped. It gets a signal (Syscall User Dispatch, since Linux 5.11), and the handler makes it:
//
//   parent   prepare . libc . clone: SIGSYS -> [ clone . waits ] . libc . after
//   child                                      [       . goes private ] . libc . after
//
// In brackets the thread is aside (aside.h). Every other system call of the thread that comes first
// is made as it was asked for.
#ifndef PM_FORK_TRAP_H
#define PM_FORK_TRAP_H

#include <stdbool.h>

#include "fork_call.h"

// Set once a seccomp filter forbids a call that this needs (sandbox.h).
extern bool pm_fork_trap_forbidden;

// This thread's next system call that makes a process with memory of its own is made by the
// function, aside, with what the kernel would return. The caller holds all locks, and has prepared
// to go aside; all signals are blocked. False: the kernel cannot do this, or the program handles
// SIGSYS itself.
bool pm_fork_trap_set(long (*make)(void *call));
// In both processes, after the call, or if there was none.
void pm_fork_trap_clear(void);

#endif

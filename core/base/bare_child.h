// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A child that shares the process' memory, as one of vfork() does, and has a copy of its table of
// descriptors. So it can open files without taking a number from the program, and it copies no page
// table. The calling thread sleeps until the child has ended, or has executed a program.
//
// It sends no signal when it ends, and the program's waits do not see it (it is one of __WCLONE).
// That is over when it executes a program: execve() makes it an ordinary child of its parent.
//
// The child has its parent's thread-local storage. So `run` and what it calls are PM_BARE and call
// nothing of libc. All signals are blocked in it, and no handler of the program runs.
#ifndef PM_BARE_CHILD_H
#define PM_BARE_CHILD_H

#include <stdatomic.h>
#include <stdint.h>

// The lowest byte of what `run` returns is its exit status. Returns its id, which the caller waits
// for (pm_bare_child_status()), or a negative error.
long pm_bare_child(long (*run)(void *arg), void *arg, void *stack_top);
// Waits for it. Returns its exit status, or -1.
int pm_bare_child_status(long id);
// The same, and the calling thread goes on. `tls`: the child's thread pointer; with thread-local
// storage of its own it calls what it likes. The kernel stores 0 to *alive when it ends.
long pm_bare_child_beside(long (*run)(void *arg), void *stack_top, void *tls,
                          _Atomic uint32_t *alive);
// A seccomp filter would end the process for it: from here on no child is made (-EPERM).
void pm_bare_child_forbid(void);

#endif

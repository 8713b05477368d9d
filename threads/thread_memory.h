// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Memory of a thread that libc does not know (bare_thread.h): a stack, and thread-local storage of
// its own, so that it can take locks and make system calls as any thread does.
//
//   [ no access | stack | thread-local variables | libc's data of a thread ]
//                                                ^ the thread pointer
//
// The thread-local variables that any of our functions use lie below the thread pointer, at the
// same distance in every thread. They are copied from the maker, down to the lowest of those that
// are ours or errno's. Of libc's data the thread pointer itself is filled in, and the guard that
// the compiler compares.
#ifndef PM_THREAD_MEMORY_H
#define PM_THREAD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct pm_thread_memory {
    char *stack_top, *pointer; // NULL: not made yet
};

// Makes it at the first call, and copies the variables at each. `variable`: our thread-local
// variables that the thread will use. The memory stays. False: there is none.
bool pm_thread_memory(struct pm_thread_memory *m, size_t stack_bytes, const void *const *variable,
                      unsigned count);
// The first thing that a thread of its own does. What its maker holds is not the thread's, nor is
// the maker's stack for the library's work: the two would take each other's frames there.
void pm_thread_memory_own(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A thread's stack may lie in the heap or in a captured root: a coroutine's, a thread's that was
// made with pthread_attr_setstack(), an alternate stack for signals. In the second case libc's data
// of the thread and its thread-local variables lie there, too. While such memory is shared with
// another process, or replaced by another mapping, the thread cannot use it. Until that is over it
// runs aside: on a stack of PMAlloc's own and, if need be, with thread-local variables of its own.
//
//   [ no access | a signal's frame | stack ] [ thread-local variables | libc's data of a thread ]
#ifndef PM_ASIDE_H
#define PM_ASIDE_H

#include <stdbool.h>
#include <stddef.h>

struct pm_aside {
    bool stack;   // this thread's stack lies where it cannot be used
    bool storage; // and so do its thread-local variables
};

// What of the calling thread lies in the heap or in a captured root, while these are on media.
struct pm_aside pm_aside_look(void);
// Makes the memory, once, and copies this thread's variables to it. Whoever calls these functions
// holds the locks, because there is one such memory. False: there is none.
bool pm_aside_prepare(void);
// Calls the function on the stack of PMAlloc's own.
long pm_aside_call(long (*function)(void *arg), void *arg);
// From here on this thread uses the other thread-local variables; and again its own. Its stores to
// the others are forgotten.
void pm_aside_enter(void);
void pm_aside_leave(void);
// Where the frame of a signal may lie.
void *pm_aside_frame(size_t *size);

#endif

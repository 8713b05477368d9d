// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The system call that makes a process with memory of its own: fork, clone or clone3.
#ifndef PM_FORK_CALL_H
#define PM_FORK_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pm_fork_call {
    long number; // of the system call
    long argument[6];
};
#define PM_NR_CLONE3 435 // younger than the oldest headers that this is built with

// Whether the call makes a process with memory of its own, on this stack.
bool pm_fork_call_forks(const struct pm_fork_call *call);
// Whether it makes one that shares the memory and the thread-local variables of the caller.
bool pm_fork_call_shares(const struct pm_fork_call *call);
// The flags of such a call.
unsigned long pm_fork_call_flags(const struct pm_fork_call *call);

#define PM_CLONE3_WORDS 32 // more than the kernel knows today

// The call as we make it. The child itself does what the call asks of the kernel for the child,
// once its memory is its own: until then the kernel would store its thread id to its parent's
// memory, and our code needs the parent's thread-local variables.
struct pm_fork_making {
    struct pm_fork_call call;
    uint64_t clone3[PM_CLONE3_WORDS];
    pid_t *tid;    // for the child to store its thread id to, or NULL
    void *storage; // the child's thread pointer, or NULL
};

// `suspends`: CLONE_VFORK stays.
void pm_fork_call_adapt(struct pm_fork_making *making, bool suspends);
long pm_fork_call_make(const struct pm_fork_making *making);
// In the child.
void pm_fork_call_store_tid(const struct pm_fork_making *making);

#endif

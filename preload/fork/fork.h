// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What becomes of the heap in a fork. One process at a time writes the heap. PMALLOC_FORK says
// which of the two goes on with it. The other one gets private memory (private.h) or a heap of its
// own (heap_copy.h):
//
//   private   the parent keeps the heap, the child gets private memory
//   copy      the parent keeps the heap, the child gets a copy of it as a heap of its own
//   follow    the first child has the heap from now on; in a double fork the last child has it
//
// libc calls a handler before a fork, and one after it in each of the two processes. The stage says
// how far this process is between these handlers. The child begins with PREPARED.
//
//   NONE ---------- prepare() ---------------> PREPARED
//   PREPARED ------ wait_for_other() --------> WAITING       the other process copies
//   PREPARED ------ make_heap_copy() --------> MAKING_HEAP
//   PREPARED ------ go_private() ------------> COPYING
//   MAKING_HEAP --- go_private() ------------> COPYING       there is no room for a heap copy
//   MAKING_HEAP --- child_copy_then_take() --> WAITING       for the parent's end
//   COPYING ------- copy() ------------------> COPIER_RUNS
//   COPIER_RUNS --- prepare() ---------------> NONE          in the next fork
//   any other ----- done() ------------------> NONE
//
//   NONE          No fork is under way.
//   PREPARED      The plan is made. From here to NONE or COPIER_RUNS the parent holds all locks,
//                 and the child has one thread. If there is a heap, signals are blocked.
//   WAITING       This process waits at the gate (fork_gate.h) until the other one has copied. A
//                 child with a heap copy waits for a second whether its parent ends.
//   MAKING_HEAP   The child makes a heap copy. Meanwhile nobody changes the first heap.
//   COPYING       The other process has the heap. This one has private mappings of heap.0, and
//                 makes the kernel copy each page of them.
//   COPIER_RUNS   A thread of PMAlloc's, the copier, makes the rest of the copies. Locks are free,
//                 signals are on, the program runs. Nobody else touches the gate until the next
//                 prepare() has waited for the copier.
#ifndef PM_FORK_H
#define PM_FORK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/machine.h"
#include "fork_call.h"

enum pm_fork_stage {
    PM_STAGE_NONE,
    PM_STAGE_PREPARED,
    PM_STAGE_WAITING,
    PM_STAGE_MAKING_HEAP,
    PM_STAGE_COPYING,
    PM_STAGE_COPIER_RUNS,
};
#define PM_STAGES 6

extern const struct pm_machine pm_fork_machine;
// Called with all locks held, or without other threads.
enum pm_fork_stage pm_fork_stage(void);

// Registers the handlers. They stay registered to the end of the process.
void pm_fork_init(void);
// The same in another C library of the process, by its function.
typedef int pm_register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void),
                               void *object);
void pm_fork_init_elsewhere(pm_register_atfork *in_space);

// Whether the next two functions can be called now. They cannot while this thread is inside the
// allocator, or before the heap is open.
bool pm_fork_serves(void);
// Makes the system call (pm_fork_call_forks) with the handlers of fork around it. Returns what the
// kernel does: in the child 0, else the child's id or a negative error.
long pm_fork_call(const struct pm_fork_call *call);
// The same for libc's _Fork(), which is `next`.
pid_t pm_fork_bare(pid_t (*next)(void));

// Waits for the copier, which a forked child may still have. Called before system calls that fail
// in a process with several threads.
void pm_fork_finish_copy(void);

#endif

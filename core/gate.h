// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// After fork one of the two processes copies, the other waits until the copy is complete, or not needed any more
// because the first has ended or executed another program. Both meet in a page of shared memory: no descriptor, which
// a program may have none of, or close.
//
//   PM_GATE_NEW  ->  thread id of the copier  ->  0                 all is copied
//                                             ->  FUTEX_OWNER_DIED  by the kernel: it ended, or executed
//
// The word is a robust futex, so the kernel itself tells the waiting side of the end, whichever way it comes.
#ifndef PM_GATE_H
#define PM_GATE_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_GATE_NEW FUTEX_WAITERS

struct pm_gate {
    _Atomic uint32_t word;
    _Atomic uint32_t
        mapped; // the copier's memory is its own: a store to a page is all that is missing
    pid_t pid;  // of the copying process, as /proc names it
    // For set_robust_list(): of the thread that begins, and of the one that goes on.
    struct {
        struct robust_list_head head;
        struct robust_list node;
    } robust[2];
};

// A page for one fork; NULL without memory.
struct pm_gate *pm_gate_new(void);
void pm_gate_drop(struct pm_gate *gate);

// The calling thread is the copier from here on ...
struct pm_gate_hold {
    void *list; // the thread's own robust list meanwhile
    size_t len;
};
struct pm_gate_hold pm_gate_take(struct pm_gate *gate);
// ... until it opens the gate, or another thread has taken over; gives the thread its own list back.
void pm_gate_open(struct pm_gate *gate);
void pm_gate_leave(struct pm_gate_hold hold);

// Waits until all is copied, or the copier has ended. Every 20 ms in between `give_up` is asked.
void pm_gate_wait(struct pm_gate *gate, bool (*give_up)(struct pm_gate *gate));

#endif

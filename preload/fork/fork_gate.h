// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// After a fork one of the two processes copies. The other one waits until every page is copied. It
// also goes on when the copying process has ended or has executed another program, because nobody
// needs the copies then. The two meet at a page of shared memory. A descriptor would not do: there
// may be no free one, and the program may close it.
//
//   PM_FORK_GATE_NEW  ->  thread id of the copying thread  ->  0                 all is copied
//                                                          ->  FUTEX_OWNER_DIED  it has ended
//
// The word is a robust futex. When the copying thread ends or executes another program, however
// that happens, the kernel stores FUTEX_OWNER_DIED and wakes the waiting process.
#ifndef PM_FORK_GATE_H
#define PM_FORK_GATE_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_FORK_GATE_NEW FUTEX_WAITERS

struct pm_fork_gate {
    _Atomic uint32_t word;
    // The copying process's enum pm_fork_stage, once it is COPYING: all its mappings are private,
    // and only a store to each page is missing.
    _Atomic uint32_t stage;
    pid_t pid; // of the copying process, as /proc names it
    // For set_robust_list(): of the thread that copies first, and of the copier if it takes over.
    struct {
        struct robust_list_head head;
        struct robust_list node;
    } robust[2];
};

// Makes the gate of one fork, closed. NULL: memory is out.
struct pm_fork_gate *pm_fork_gate_new(void);
// Unmaps the gate in this process.
void pm_fork_gate_drop(struct pm_fork_gate *gate);

struct pm_fork_gate_hold {
    void *list; // the thread's own robust list, which the gate's replaces meanwhile
    size_t len; // 0: there is nothing to put back
};
// From here on the calling thread copies, and the waiting process notices the thread's end ...
struct pm_fork_gate_hold pm_fork_gate_take(struct pm_fork_gate *gate);
// ... until the thread opens the gate: every page is copied.
void pm_fork_gate_open(struct pm_fork_gate *gate);
// Puts the thread's own robust list back. Called after it has opened the gate, or after the copier
// has taken over.
void pm_fork_gate_leave(struct pm_fork_gate_hold hold);

// Waits until every page is copied, or the copying thread has ended. Asks `give_up` every 20 ms,
// and stops waiting if it says true.
void pm_fork_gate_wait(struct pm_fork_gate *gate, bool (*give_up)(struct pm_fork_gate *gate));

#endif

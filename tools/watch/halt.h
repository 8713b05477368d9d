// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Halts another process by ptrace(2): stops all of its threads, those that sleep in a call, too:
// the registers of all can be read, and one of them can be made to run something. Afterwards each
// goes on where it was. A call in which it was asleep begins again, most with the time that is left
// (signal(7), "Interruption of system calls and library functions by stop signals"); one that would
// return EINTR begins again with all of its time. The signal of a thread that stops at one is kept
// for it.
//
// If the process that halts it ends, the kernel lets all threads go on.
#ifndef PM_TOOLS_HALT_H
#define PM_TOOLS_HALT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/user.h>

#include "base/message.h"

struct halt_thread {
    pid_t id;
    bool dead, stopped;
    bool clean;                   // stopped by us, not at a signal
    int signal;                   // at which it has stopped; it goes on with that
    struct user_regs_struct regs; // while it is stopped
};

struct halt {
    pid_t pid;
    struct halt_thread *thread;
    size_t count, room;
    bool contended; // halt_begin() has failed because another tool has a thread now
};

// Stops those that are not stopped yet, also new ones. False: not all have stopped, and `err` says
// why; halt_end() is due in any case.
bool halt_begin(struct halt *h, struct pm_error *err);
// A stopped thread goes on; it is asked to stop; it is awaited (false: it does not, or is dead).
void halt_go_on(struct halt_thread *t);
void halt_recall(struct halt_thread *t);
bool halt_await(struct halt_thread *t);
// A look whether it has stopped, at once.
bool halt_stopped(struct halt_thread *t);
void halt_end(struct halt *h);
// Whether the thread has ended. While others of its process are stopped its end is not reported.
bool halt_has_ended(pid_t id);
// A short sleep.
void halt_nap(long ns);

#endif

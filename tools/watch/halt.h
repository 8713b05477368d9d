// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Halts another process by ptrace(2): stops all of its threads, those that sleep in a call, too
// (tracee.h): the registers of all can be read, and one of them can be made to run something.
// Afterwards each goes on where it was.
//
// If the process that halts it ends, the kernel lets all threads go on.
#ifndef PM_TOOLS_HALT_H
#define PM_TOOLS_HALT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/message.h"
#include "tracee.h"

struct halt {
    pid_t pid;
    struct tracee *thread;
    size_t count, room;
    bool contended; // halt_begin() has failed because another tool has a thread now
};

// Stops those that are not stopped yet, also new ones. False: not all have stopped, and `err` says
// why; halt_end() is due in any case.
bool halt_begin(struct halt *h, struct pm_error *err);
// Waits for the stop of one that goes on and was asked to stop. False: it does not, or is dead.
bool halt_await(struct tracee *t);
void halt_end(struct halt *h);

#endif

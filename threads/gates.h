// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program's signal handlers while its threads are held (threads.h). A signal may still arrive
// at a thread that sleeps in a call. A handler that was set by a function of libc's waits until
// threads go on (postpone.h). One that the kernel got by an instruction of the program's, or from
// libc itself, is a stranger. A gate runs in the place of each: with its flags and its mask, so
// that the call ends or is repeated as it would be. It waits, and calls the stranger with the same
// arguments.
//
// Threads at rest block signals, and not those that the program ignores. The kernel discards an
// ignored signal at once, unless the first thread blocks it. Then it wakes another thread for it,
// and some calls of that thread end with EINTR, although no handler runs.
#ifndef PM_GATES_H
#define PM_GATES_H

#include <stdbool.h>
#include <stdint.h>

#include "tasks.h"

// The signals that the program ignores: bit 0 is signal 1.
uint64_t pm_signals_ignored(void);

enum pm_gates {
    PM_GATES_NONE,   // no stranger was there
    PM_GATES_CLOSED, // each stranger has a gate; one may have begun before that
    PM_GATES_LATE,   // the program has a handler now for a signal that it ignored before, so a
                     // thread at rest may run that
};
// Called when all threads rest. `own` is the signal of threads.h, which gets no gate. `state`: what
// /proc has said since; NULL: nothing, and the kernel is asked about each signal.
enum pm_gates pm_gates_close(int own, uint64_t ignored, const struct pm_tasks_state *state);
// Before the first thread goes on. Does nothing if gates are open.
void pm_gates_open(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A look at a process that uses a heap, and at the heap, while all of its threads are stopped.
// Afterwards they go on as if nothing had been.
#ifndef PM_TOOLS_HALTED_H
#define PM_TOOLS_HALTED_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "halt.h"

struct halted {
    pid_t pid;
    char heap[PATH_MAX]; // "" until it is found
    struct halt halt;
    uint64_t held_ns;
};

// Finds the heap, stops the threads, calls `look`, which may open the heap (PM_OPEN_HALTED), and
// lets them go on. Returns the status of `look`, or of what went wrong before it.
int halted_look(struct halted *h, pid_t pid, int look(struct halted *, void *, struct pm_error *),
                void *arg, struct pm_error *err);

// For `look`, once it has opened the heap: copies its data into memory of this process, where they
// are read from now on, so that the threads may go on before that. False: there is not enough
// memory, and the heap is read as before.
bool halted_copy(void);

#endif

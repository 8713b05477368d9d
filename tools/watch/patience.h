// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Patience with another thread counts the time in which that thread could run. On a busy machine it
// may wait for a processor longer than for anything it does itself.
#ifndef PM_TOOLS_PATIENCE_H
#define PM_TOOLS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// What was known of a thread when it was last asked about. All zero: it was not.
struct patience {
    uint64_t looked_ns; // of the monotonic clock
    uint64_t ran_ns;
};

// How long the thread could have run since the last question: what it has run, if it waits for a
// processor or has one, else all that went by. The first question gives 0.
uint64_t patience_chance(struct patience *p, pid_t pid, pid_t thread);
// Of the monotonic clock.
uint64_t patience_now_ns(void);

#endif

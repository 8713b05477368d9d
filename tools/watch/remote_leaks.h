// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Lets a process that runs count its leaks (live/leaks_door.h), without a trace: all its threads
// are stopped (halt.h), one of them runs the library's function on a stack of its own, with all
// signals but faults kept pending, and gets all its registers back.
#ifndef PM_TOOLS_REMOTE_LEAKS_H
#define PM_TOOLS_REMOTE_LEAKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/message.h"
#include "live/leaks_door.h"

struct remote_leaks {
    struct pm_error err;
    struct pm_leaks_asked found; // `answer` says what is in it; PM_LEAKS_FAILED: `err` says why
    uint64_t held_ns;            // how long threads were stopped the last time
};

// `door`: where it is in the process, and what it has there.
void remote_leaks(pid_t pid, const struct pm_leaks_door *door, struct remote_leaks *out);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Lets a process that runs count its leaks (live/leaks_door.h), without a trace: the process is
// halted (halt.h), one of its threads runs the library's function on a stack of its own, with all
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
    uint64_t held_ns;            // how long it was halted at most
};

// `door`: where it is in the process, and what it has there.
void remote_leaks(pid_t pid, const struct pm_leaks_door *door, struct remote_leaks *out);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether a program lives, as far as it can be seen from outside.
#ifndef PM_TOOLS_HEALTH_H
#define PM_TOOLS_HEALTH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { HEALTH_READY_MS = 10000 }; // how long the command may take while the program starts

// False: it is stopped, or dead.
bool health_runs(pid_t pid);
// Whether this command for /bin/sh succeeds within so many milliseconds. Else all that it has
// started is killed. Ends this process when the one that `program` (a pidfd) means has ended.
bool health_ask(const char *command, int program, uint64_t ms);

#endif

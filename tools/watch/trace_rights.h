// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the kernel lets this process trace another one; if not, why, and what to do.
#ifndef PM_TOOLS_TRACE_RIGHTS_H
#define PM_TOOLS_TRACE_RIGHTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/message.h"

// Waits for another of these tools that traces it, since that will not be long. False: `err` says
// why not.
bool trace_allowed(pid_t pid, struct pm_error *err);
// Of a thread that this process may not trace for now: whether it is because another of these tools
// does, which will not be for long, or has done so until now.
bool trace_tool_has(pid_t pid, pid_t thread);

#endif

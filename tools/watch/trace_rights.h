// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Why the kernel does not let this process trace another one, and what to do.
#ifndef PM_TOOLS_TRACE_RIGHTS_H
#define PM_TOOLS_TRACE_RIGHTS_H

#include <sys/types.h>

#include "base/message.h"

// Fails with one line.
int trace_refused(pid_t pid, struct pm_error *err);

#endif

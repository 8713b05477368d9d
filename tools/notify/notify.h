// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-run --notify: says to a service manager, in the protocol of sd_notify(3), when a program
// that knows nothing of that protocol has started, and that it lives.
#ifndef PM_TOOLS_NOTIFY_H
#define PM_TOOLS_NOTIFY_H

#include "base/message.h"

// The calling process is to execute the program next. A process of its own, which no wait of the
// program sees, looks at it until it ends. NOTIFY_SOCKET and WATCHDOG_* leave the environment, so
// the program does not say the same things a second time.
//   `name`     PMALLOC_PROGRAM, of what the program starts; NULL: the heap is the program's
//   `healthy`  a command for /bin/sh; while it fails, the program is neither ready nor alive
// PM_OK, also where no service manager asks for it.
int notify_begin(const char *name, const char *healthy, struct pm_error *err);

#endif

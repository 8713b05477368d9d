// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots that are restored late (gc/roots/parts.h): not before main, where a program that sets its
// globals up in main would replace them, but when it is ready for them.
//
//   SPEC@idle   at the first moment at which each of its threads is in a call that waits. The
//               thread that comes to wait last restores them, before it waits.
//   SPEC@call   when it calls pmalloc_restore(). If one root says so, all late roots wait for that.
//
// All threads are held meanwhile. What the program has built there is garbage then. Until that
// moment, whatever ends the process, it is as if it had not started.
#ifndef PM_LATE_H
#define PM_LATE_H

#include <stdbool.h>

#include "base/message.h"

// Whether roots wait. Set before main, and unset for good at their moment.
extern bool pm_late_awaited;

// Once the roots are known, before the program has threads. PM_OPERATIONAL: there is no memory.
int pm_late_begin(struct pm_error *err);
// When the other roots are restored.
void pm_late_start(void);

// Before and after a call that waits. `may`: the thread may hold the others here.
void pm_late_enter(bool may);
void pm_late_leave(void);

// At pmalloc_restore(). 0, or ENOENT: no root waits, or EAGAIN: a thread does not stop.
int pm_late_call(void);

// In a forked child.
void pm_late_forked(void);
// The process has no part in the heap any more: they are not restored in it.
void pm_late_never(void);
// At the end of the program: says that they were not restored.
void pm_late_end(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots that are restored late (gc/roots/parts.h): not before main, where a program that sets its
// globals up in main would replace them, but when it is ready for them.
//
//   SPEC@idle   at the first moment at which each of its threads sleeps in a call that waits, and
//               one of them waits for others: for input, a connection, a signal. Until then, but
//               for three seconds at most, or as long as nobody has found a processor to look for
//               the moment, such a thread stays before its call, and one that has asked without
//               waiting, and has found something, after it: so no request that has come already
//               is answered from what main has set up. A read of what the kernel answers on a
//               netlink socket does not count, and a call is let through while there is something
//               that the process has told itself (own_pipes.h).
//   SPEC@call   when it calls pmalloc_restore(). If one root says so, all late roots wait for that.
//
// All threads are held meanwhile. What the program has built there is garbage then. Until that
// moment, whatever ends the process, it is as if it had not started.
#ifndef PM_LATE_H
#define PM_LATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "threads/calls.h"

// Whether roots wait. Set before main, and unset for good at their moment.
extern bool pm_late_awaited;

// Once the roots are known, before the program has threads. PM_OPERATIONAL: there is no memory.
int pm_late_begin(struct pm_error *err);
// When the other roots are restored.
void pm_late_start(void);

// Before a call that waits, or after one that did not wait and has found something.
void pm_late_enter(const struct pm_call *call);

// For PMAlloc's own thread: whether it is to look for that moment, and a look. Returns how long to
// wait before the next one, in microseconds.
bool pm_late_looks(void);
uint64_t pm_late_look(void);

// At pmalloc_restore(). 0, or ENOENT: no root waits, EAGAIN: a thread does not stop, or EBUSY: a
// commit or a fork takes long.
int pm_late_call(void);

// The process has no part in the heap any more: they are not restored in it.
void pm_late_never(void);
// At the end of the program: says that they were not restored.
void pm_late_end(void);

#endif

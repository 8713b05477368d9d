// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Halts all threads of another process for a moment, from outside and without its help. Memory and
// files are then as a kill at that moment would leave them.
//
//   a thread that   is
//   runs            stopped by ptrace(2), where it is
//   sleeps          left asleep. If it has run meanwhile, it is stopped, and all is done once more
//
// So no sleeping call is disturbed: it ends when and as it would, and its timeout runs on. A
// thread that goes to sleep between the look and the stop may be in a call that returns EINTR to
// a stopped thread (epoll_wait, semop and others, see signal(7)). Such a call is made to begin
// again, unless a signal has arrived.
//
// If this process ends, however it ends, the kernel lets the threads go on.
#ifndef PM_TOOLS_STANDSTILL_H
#define PM_TOOLS_STANDSTILL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/message.h"

enum standstill_result {
    STANDSTILL_DONE,
    STANDSTILL_GONE,    // the process has ended
    STANDSTILL_REFUSED, // the kernel does not allow it; `err` says why
    STANDSTILL_RESTLESS // threads did not come to rest in time; `err` says so
};

// Calls fn(arg) while no thread of the process runs. It is called again if a thread has run during
// the call: the last call is the one that succeeds. `pause_ns` becomes how long the process was
// halted.
enum standstill_result standstill(pid_t pid, void fn(void *arg), void *arg, uint64_t *pause_ns,
                                  struct pm_error *err);

#endif

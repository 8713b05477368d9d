// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What may interrupt the slow paths of a thread:
//
//   cancellation   malloc is no cancellation point, but fallocate(2), msync(2) and write(2) below it are: a cancelled
//                  thread would leave with a lock held. An asynchronous one may go at any instruction. So it waits.
//   a handler      of a signal that asks for memory itself. It must not wait for what the interrupted thread holds
//                  (pm_locks_held), and sees a stack that is being changed as one without room and blocks (tcache.h).
#ifndef PM_GUARD_H
#define PM_GUARD_H

#include <pthread.h>
#include <stdbool.h>

#include "lock.h"

struct pm_guard {
    int type, state;
};

// Set in a guarded thread that allows asynchronous cancellation. glibc up to 2.36 acts on one that is on its way when it
// arrives in a system call that is a cancellation point, although it is disabled. Then those calls that malloc and free
// make while they hold a lock go past libc.
extern __thread bool pm_guard_asynchronous __attribute__((tls_model("initial-exec")));

// Holds cancellation off until pm_guard_leave(). The type first, for the same reason; where it is deferred already that
// costs but a load.
static inline struct pm_guard pm_guard_enter(void) {
    struct pm_guard before;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before.type);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.state);
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_guard_asynchronous = true;
    return before;
}

static inline void pm_guard_leave(struct pm_guard before) {
    int ignored;
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_guard_asynchronous = false;
    pthread_setcancelstate(before.state, &ignored);
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pthread_setcanceltype(before.type, &ignored);
}

// In a signal handler that has interrupted a holder of a lock of ours: whatever takes one might wait for ever.
static inline bool pm_nested(void) { return __builtin_expect(pm_locks_held != 0, 0); }

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Two things may interrupt a slow path of a thread:
//
//   cancellation   malloc is no cancellation point, but it calls fallocate(2), msync(2) and
//                  write(2), which are. A thread cancelled there would leave a lock held. With
//                  asynchronous cancellation this could happen at any instruction. So cancellation
//                  waits until the slow path ends.
//   a handler      of a signal may ask for memory itself. It must not wait for a lock that the
//                  interrupted code holds (pm_locks_held). It finds a stack that the interrupted
//                  request has seized as one without blocks and without room (tcache.h).
#ifndef PM_CANCEL_H
#define PM_CANCEL_H

#include <pthread.h>
#include <stdbool.h>

#include "lock.h"

struct pm_cancel {
    int type, state;
};

// True while this thread holds cancellation off and had asynchronous cancellation before. glibc up
// to 2.36 may act on an asynchronous cancellation that arrives in a system call which is a
// cancellation point, although cancellation is disabled. While this is true, malloc and free
// therefore make such system calls directly and not through libc.
extern __thread bool pm_cancel_asynchronous __attribute__((tls_model("initial-exec")));

// Holds cancellation off until pm_cancel_release(). The type is changed before the state, for the
// same reason. If the type is deferred already, that costs one load.
static inline struct pm_cancel pm_cancel_hold(void) {
    struct pm_cancel before;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before.type);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.state);
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_cancel_asynchronous = true;
    return before;
}

static inline void pm_cancel_release(struct pm_cancel before) {
    int ignored;
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_cancel_asynchronous = false;
    pthread_setcancelstate(before.state, &ignored);
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pthread_setcanceltype(before.type, &ignored);
}

// Whether this thread holds a lock of ours. Code outside the allocator sees that only in a signal
// handler that interrupted the allocator. To wait for a lock there might take for ever.
static inline bool pm_nested(void) { return __builtin_expect(pm_locks_held != 0, 0); }

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Two things may interrupt a slow path of a thread:
//
//   cancellation   malloc is no cancellation point, but it calls fallocate(2), msync(2) and
//                  write(2), which are. A thread cancelled there would leave a lock held. With
//                  asynchronous cancellation this could happen at any instruction. So cancellation
//                  waits until the slow path ends.
//   a handler      of a signal may ask for memory itself, or fork. So it waits until the slow path
//                  ends (postpone.h). A fault's handler runs at once. It must not wait for a lock
//                  that the interrupted code holds (pm_locks_held). It finds a stack that the
//                  interrupted request has seized as one without blocks and without room
//                  (tcache.h).
#ifndef PM_CANCEL_H
#define PM_CANCEL_H

#include <pthread.h>
#include <stdbool.h>

#include "here.h"
#include "lock.h"

struct pm_cancel {
    int type, state;
};

// True while this thread postpones cancellation and had asynchronous cancellation before. glibc up
// to 2.36 may act on an asynchronous cancellation that arrives in a system call which is a
// cancellation point, although cancellation is disabled. While this is true, malloc and free
// therefore make such system calls directly and not through libc.
extern __thread bool pm_cancel_asynchronous __attribute__((tls_model("initial-exec")));

// How many slow paths this thread is in, each within the next one. Not 0: handlers wait.
extern __thread uint32_t pm_inside __attribute__((tls_model("initial-exec")));
// One waits, or a command of PMALLOC_ON does (event_hook.h). The outermost slow path lets it come,
// at its end.
extern __thread bool pm_postponed __attribute__((tls_model("initial-exec")));
void pm_postponed_arrive(void);

static inline void pm_inside_enter(void) {
    pm_inside++;
    atomic_signal_fence(memory_order_seq_cst);
}

// A signal comes before the subtraction, and then it is seen after it; or it does not wait.
static inline void pm_inside_leave(void) {
    atomic_signal_fence(memory_order_seq_cst);
    pm_inside--;
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(pm_postponed, 0) && pm_inside == 0)
        pm_postponed_arrive();
}

// Postpones cancellation and handlers until pm_cancel_release(). The type is changed before the
// state, for the same reason. If the type is deferred already, that costs one load. Here a child
// finds out that nobody has seen to it (here.h).
static inline struct pm_cancel pm_cancel_hold(void) {
    struct pm_cancel before;
    pm_inside_enter();
    if (!pm_is_here())
        pm_here_lost();
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before.type);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.state);
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_cancel_asynchronous = true;
    return before;
}

// The same for a stretch without a cancellation point: it is shorter, because the state need not
// change.
static inline int pm_cancel_hold_short(void) {
    int before;
    pm_inside_enter();
    if (!pm_is_here())
        pm_here_lost();
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
    return before;
}

static inline void pm_cancel_release_short(int before) {
    int ignored;
    pm_inside_leave();
    if (__builtin_expect(before != PTHREAD_CANCEL_DEFERRED, 0))
        pthread_setcanceltype(before, &ignored);
}

// Handlers come before an asynchronous cancellation, which would end the thread without them.
static inline void pm_cancel_release(struct pm_cancel before) {
    int ignored;
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pm_cancel_asynchronous = false;
    pthread_setcancelstate(before.state, &ignored);
    pm_inside_leave();
    if (before.type != PTHREAD_CANCEL_DEFERRED)
        pthread_setcanceltype(before.type, &ignored);
}

// Whether this thread holds a lock of ours. Code outside the allocator sees that only in a signal
// handler of a fault that interrupted the allocator. To wait for a lock there might take for ever.
static inline bool pm_nested(void) { return __builtin_expect(pm_locks_held != 0, 0); }

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pthread_create() and thrd_create(). Where threads may be held or stopped, a new thread gets a
// stack for signals first (base/signal_stack.h). It gives it back when it ends, in whatever way. In
// commit mode it is also put on our own record (threads/thread_list.h), for where /proc cannot list
// it.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <threads.h>

#include "base/signal_stack.h"
#include "export.h"
#include "media/heap.h"
#include "media/outside.h"
#include "next.h"
#include "process/thread_end.h"
#include "threads/calls.h"
#include "threads/thread_list.h"

typedef void *posix_fn(void *);
typedef int c11_fn(void *);
typedef int create_posix_fn(pthread_t *, const pthread_attr_t *, posix_fn *, void *);
typedef int create_c11_fn(thrd_t *, c11_fn *, void *);

// ---- before it is made --------------------------------------------------------------------------

// A place on the record and a stack; either may be missing. The program's function and its argument
// lie in one of them until the new thread has read them.
struct making {
    struct pm_thread_slot *slot;
    struct pm_signal_stack *stack;
};

// While the thread that makes it may be the only one, it has no stack either.
static struct making make(const void *run, void *arg) {
    pm_thread_end_hear();
    struct making m = {.slot = pm_calls_recorded ? pm_thread_list_claim() : NULL};
    if (pm_calls_recorded || pm_heap_on_media()) {
        pm_signal_stack_give();
        m.stack = pm_signal_stack_take();
    }
    if (m.slot) {
        m.slot->run = run;
        m.slot->arg = arg;
        m.slot->stack = m.stack;
    } else if (m.stack) {
        pm_signal_stack_kept(m.stack)[0] = (void *)(uintptr_t)run;
        pm_signal_stack_kept(m.stack)[1] = arg;
    }
    return m;
}

static void unmake(struct making m) {
    if (m.slot)
        pm_thread_list_drop(m.slot);
    if (m.stack)
        pm_signal_stack_return(m.stack);
}

// ---- in the new thread --------------------------------------------------------------------------

// Where threads are held already, it waits before it runs anything of the program's.
static struct pm_thread_slot begin_listed(void *slot) {
    struct pm_thread_slot *own = slot;
    struct pm_thread_slot copy = {.run = own->run, .arg = own->arg, .stack = own->stack};
    struct pm_call none = {0};
    if (copy.stack)
        pm_signal_stack_use(copy.stack);
    pm_thread_list_enter(own);
    pm_outside_thread(__builtin_frame_address(0));
    pm_call_enter(&none);
    pm_call_leave(&none);
    return copy;
}

static struct pm_thread_slot begin(void *stack) {
    void **kept = pm_signal_stack_kept(stack);
    struct pm_thread_slot copy = {.run = kept[0], .arg = kept[1], .stack = stack};
    pm_signal_stack_use(stack);
    pm_outside_thread(__builtin_frame_address(0));
    return copy;
}

static void drop(void *stack) {
    if (stack)
        pm_signal_stack_drop();
}

static void *run_posix(struct pm_thread_slot of) {
    posix_fn *run = (posix_fn *)(uintptr_t)of.run;
    void *result;
    pthread_cleanup_push(drop, of.stack);
    result = run(of.arg);
    pthread_cleanup_pop(1);
    return result;
}

static int run_c11(struct pm_thread_slot of) {
    c11_fn *run = (c11_fn *)(uintptr_t)of.run;
    int result;
    pthread_cleanup_push(drop, of.stack);
    result = run(of.arg);
    pthread_cleanup_pop(1);
    return result;
}

static void *posix_listed(void *slot) { return run_posix(begin_listed(slot)); }
static void *posix_alone(void *stack) { return run_posix(begin(stack)); }
static int c11_listed(void *slot) { return run_c11(begin_listed(slot)); }
static int c11_alone(void *stack) { return run_c11(begin(stack)); }

// ---- the names ----------------------------------------------------------------------------------

EXPORT create_posix_fn pm_threads_create __asm__("pthread_create");
EXPORT int pm_threads_create(pthread_t *id, const pthread_attr_t *attr, posix_fn *run, void *arg) {
    static _Atomic(void *) found;
    create_posix_fn *next;
    *(void **)&next = pm_next(&found, "pthread_create");
    if (!next)
        return EAGAIN;
    struct making m = make((void *)(uintptr_t)run, arg);
    int error = m.slot    ? next(id, attr, posix_listed, m.slot)
                : m.stack ? next(id, attr, posix_alone, m.stack)
                          : next(id, attr, run, arg);
    if (error)
        unmake(m);
    return error;
}

EXPORT create_c11_fn pm_threads_c_create __asm__("thrd_create");
EXPORT int pm_threads_c_create(thrd_t *id, c11_fn *run, void *arg) {
    static _Atomic(void *) found;
    create_c11_fn *next;
    *(void **)&next = pm_next(&found, "thrd_create");
    if (!next)
        return thrd_error;
    struct making m = make((void *)(uintptr_t)run, arg);
    int status = m.slot    ? next(id, c11_listed, m.slot)
                 : m.stack ? next(id, c11_alone, m.stack)
                           : next(id, run, arg);
    if (status != thrd_success)
        unmake(m);
    return status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pthread_create() and thrd_create(): in commit mode each new thread is put on our own record
// (base/thread_list.h), for where /proc cannot list it.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <threads.h>

#include "base/calls.h"
#include "base/thread_list.h"
#include "export.h"

typedef void *posix_fn(void *);
typedef int c11_fn(void *);
typedef int create_posix_fn(pthread_t *, const pthread_attr_t *, posix_fn *, void *);
typedef int create_c11_fn(thrd_t *, c11_fn *, void *);

static void *find(_Atomic(void *) *next, const char *name) {
    void *found = atomic_load_explicit(next, memory_order_relaxed);
    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(next, found, memory_order_relaxed);
    }
    return found;
}

// Where threads are held already, the new one waits before it runs anything of the program's.
static struct pm_thread_slot begin(void *slot) {
    struct pm_thread_slot *own = slot, copy = {.run = own->run, .arg = own->arg};
    struct pm_call none = {0};
    pm_thread_list_enter(own);
    pm_call_enter(&none);
    pm_call_leave(&none);
    return copy;
}

static void *begin_posix(void *slot) {
    struct pm_thread_slot of = begin(slot);
    return of.run.posix(of.arg);
}

static int begin_c11(void *slot) {
    struct pm_thread_slot of = begin(slot);
    return of.run.c11(of.arg);
}

EXPORT int pthread_create(pthread_t *id, const pthread_attr_t *attr, posix_fn *run, void *arg) {
    static _Atomic(void *) found;
    create_posix_fn *next;
    *(void **)&next = find(&found, "pthread_create");
    struct pm_thread_slot *slot = next && pm_calls_recorded ? pm_thread_list_claim() : NULL;
    if (!slot)
        return next ? next(id, attr, run, arg) : EAGAIN;
    slot->run.posix = run;
    slot->arg = arg;
    int error = next(id, attr, begin_posix, slot);
    if (error)
        pm_thread_list_drop(slot);
    return error;
}

EXPORT int thrd_create(thrd_t *id, c11_fn *run, void *arg) {
    static _Atomic(void *) found;
    create_c11_fn *next;
    *(void **)&next = find(&found, "thrd_create");
    struct pm_thread_slot *slot = next && pm_calls_recorded ? pm_thread_list_claim() : NULL;
    if (!slot)
        return next ? next(id, run, arg) : thrd_error;
    slot->run.c11 = run;
    slot->arg = arg;
    int status = next(id, begin_c11, slot);
    if (status != thrd_success)
        pm_thread_list_drop(slot);
    return status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Keys for thread-specific data. PMAlloc has one of the 1024, and gives it to a program that has
// used all others (process/thread_end.h). musl's functions are as they are.
#include <features.h>

#ifdef __GLIBC__
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <threads.h>

#include "export.h"
#include "process/thread_end.h"

extern int __pthread_key_create(pthread_key_t *key, void (*ended)(void *value));

typedef int delete_fn(pthread_key_t key);

static int delete_by_libc(pthread_key_t key) {
    static delete_fn *_Atomic known;
    delete_fn *real = atomic_load_explicit(&known, memory_order_relaxed);
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_key_delete");
        if (!real)
            return EINVAL;
        atomic_store_explicit(&known, real, memory_order_relaxed);
    }
    return real(key);
}

EXPORT int pthread_key_create(pthread_key_t *key, void (*ended)(void *value)) {
    int error = __pthread_key_create(key, ended);
    if (error == EAGAIN && pm_thread_end_give_key(delete_by_libc))
        error = __pthread_key_create(key, ended);
    return error;
}

EXPORT int pthread_key_delete(pthread_key_t key) {
    int error = delete_by_libc(key);
    if (error == 0)
        pm_thread_end_take_key();
    return error;
}

EXPORT int tss_create(tss_t *key, tss_dtor_t ended) {
    int error = pthread_key_create(key, ended);
    return error == 0 ? thrd_success : error == ENOMEM ? thrd_nomem : thrd_error;
}

EXPORT void tss_delete(tss_t key) { pthread_key_delete(key); }
#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "thread_end.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blocks/tcache.h"

// Past the names that programs call, which are in preload/names/.
#ifdef __GLIBC__
extern int __pthread_key_create(pthread_key_t *key, void (*ended)(void *value));
#else
#define __pthread_key_create pthread_key_create
#endif

static pthread_key_t key;
static void (*when_ended)(void *cache);
static _Atomic enum whose { NOT_BEGUN, LATER, OURS, GIVEN, CHANGING } whose;

void pm_thread_end_begin(void (*ended)(void *cache)) {
    when_ended = ended;
    whose = LATER;
}

static bool change(enum whose from) {
    return atomic_compare_exchange_strong(&whose, &from, CHANGING);
}

static void take_key(enum whose from) {
    if (atomic_load_explicit(&whose, memory_order_relaxed) != from || !change(from))
        return;
    bool got = __pthread_key_create(&key, when_ended) == 0;
    atomic_store_explicit(&whose, got ? OURS : GIVEN, memory_order_release);
    if (got && pm_tcache != &pm_no_tcache)
        pm_thread_end_note(pm_tcache);
}

void pm_thread_end_hear(void) {
    take_key(LATER);
    if (pm_tcache != &pm_no_tcache)
        pm_thread_end_note(pm_tcache);
}

bool pm_thread_end_is_heard(void) {
    if (atomic_load_explicit(&whose, memory_order_acquire) == OURS ||
        syscall(SYS_gettid) == getpid())
        return true;
    pm_thread_end_hear(); // a thread that libc has made for itself
    return atomic_load_explicit(&whose, memory_order_acquire) == OURS;
}

void pm_thread_end_note(void *cache) {
    if (atomic_load_explicit(&whose, memory_order_acquire) == OURS)
        pthread_setspecific(key, cache);
}

bool pm_thread_end_give_key(int delete (pthread_key_t key)) {
    if (!change(OURS))
        return false;
    delete (key);
    atomic_store_explicit(&whose, GIVEN, memory_order_release);
    return true;
}

void pm_thread_end_take_key(void) { take_key(GIVEN); }

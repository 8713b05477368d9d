// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The layouts of a mutex and of a once-flag are part of libc's binary interface, because programs
// contain initialised ones. The layouts of the other objects change with the version of libc (glibc
// 2.41 moves words of the condition variable). So they are learned from libc itself. An object is
// made with all attributes set. Its words that are not zero are attributes. The others are state,
// and are zero in a new object.
#include "lock_state.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define WORDS(type) (sizeof(type) / sizeof(uint32_t))

static struct {
    _Atomic bool known;
    uint32_t rwlock[WORDS(pthread_rwlock_t)]; // bits to keep
    uint32_t cond[WORDS(pthread_cond_t)];
    uint32_t barrier[WORDS(pthread_barrier_t)];
    pthread_spinlock_t spin; // a free one
} learned;

static void put(volatile uint32_t *word, uint32_t value) {
    if (*word != value)
        *word = value;
}

static void keep_only(void *object, const uint32_t *keep, size_t words) {
    volatile uint32_t *word = object;
    for (size_t i = 0; i < words; i++)
        put(&word[i], word[i] & keep[i]);
}

// ---- learning -----------------------------------------------------------------------------------

static void keep_words(uint32_t *keep, const void *sample, size_t words) {
    uint32_t word[WORDS(pthread_rwlock_t) + WORDS(pthread_cond_t)];
    memcpy(word, sample, words * sizeof *word);
    for (size_t i = 0; i < words; i++)
        if (word[i])
            keep[i] = UINT32_MAX;
}

static void learn_rwlock(void) {
    pthread_rwlockattr_t attr;
    pthread_rwlock_t sample;
    memset(&sample, 0, sizeof sample);
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&sample, &attr);
    keep_words(learned.rwlock, &sample, WORDS(pthread_rwlock_t));
}

static void learn_cond(void) {
    pthread_condattr_t attr;
    pthread_cond_t sample;
    memset(&sample, 0, sizeof sample);
    pthread_condattr_init(&attr);
    pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&sample, &attr);
#ifdef __GLIBC__ // one word has two flags (attributes) and above them the number of waiters
    memcpy(learned.cond, &sample, sizeof sample);
#else
    keep_words(learned.cond, &sample, WORDS(pthread_cond_t));
#endif
}

static void learn_barrier(void) {
    pthread_barrierattr_t attr;
    pthread_barrier_t sample;
    memset(&sample, 0, sizeof sample);
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&sample, &attr, 2);
    keep_words(learned.barrier, &sample, WORDS(pthread_barrier_t));
}

// Several threads may do this at once: they learn the same.
void pm_lock_state_learn(void) {
    if (atomic_load_explicit(&learned.known, memory_order_acquire))
        return;
    learn_rwlock();
    learn_cond();
    learn_barrier();
    pthread_spin_init(&learned.spin, PTHREAD_PROCESS_PRIVATE);
    atomic_store_explicit(&learned.known, true, memory_order_release);
}

// ---- resetting ----------------------------------------------------------------------------------

#ifdef __GLIBC__
#define KIND_ROBUST 16
#define KIND_CEILING 64 // PTHREAD_PRIO_PROTECT
#define CEILING 0xfff80000u
#define NOT_RECOVERABLE (INT_MAX - 1)
_Static_assert(offsetof(struct __pthread_mutex_s, __kind) == 16, "as in static initialisers");

void pm_reset_mutex(void *object) {
    struct __pthread_mutex_s *m = &((pthread_mutex_t *)object)->__data;
    volatile uint32_t *word = object;
    uint32_t lock = (uint32_t)m->__lock, kind = (uint32_t)m->__kind;
    if (m->__kind < 0 || m->__owner == NOT_RECOVERABLE) // destroyed, or given up for good
        return;
    if (kind & KIND_CEILING)
        lock &= CEILING;
    else if (kind & KIND_ROBUST && lock & (FUTEX_TID_MASK | FUTEX_OWNER_DIED))
        lock = FUTEX_OWNER_DIED;
    else
        lock = 0;
    for (size_t i = 0; i < WORDS(pthread_mutex_t); i++)
        put(&word[i], 0 == i                                                ? lock
                      : offsetof(struct __pthread_mutex_s, __kind) / 4 == i ? kind
                                                                            : 0);
    // A dead owner is one user.
    put((volatile uint32_t *)&m->__nusers, lock == FUTEX_OWNER_DIED);
}

#else // musl: type, lock, waiters, (pointer) previous, next, count
#define TYPE_ROBUST 4

void pm_reset_mutex(void *object) {
    volatile uint32_t *word = object;
    uint32_t type = word[0], lock = word[1];
    if ((lock & FUTEX_TID_MASK) == FUTEX_TID_MASK) // not recoverable
        return;
    lock = type & TYPE_ROBUST && lock & (FUTEX_TID_MASK | FUTEX_OWNER_DIED) ? FUTEX_OWNER_DIED : 0;
    for (size_t i = 1; i < WORDS(pthread_mutex_t); i++)
        put(&word[i], i == 1 ? lock : 0);
}
#endif

void pm_reset_rwlock(void *object) { keep_only(object, learned.rwlock, WORDS(pthread_rwlock_t)); }

void pm_reset_cond(void *object) { keep_only(object, learned.cond, WORDS(pthread_cond_t)); }

void pm_reset_barrier(void *object) {
    keep_only(object, learned.barrier, WORDS(pthread_barrier_t));
}

void pm_reset_spin(void *object) { put(object, (uint32_t)learned.spin); }

// 2 is "done" in both libcs. Anything else is "new" or "in progress".
void pm_reset_once(void *object) {
    volatile uint32_t *word = object;
    if (*word != 2)
        put(word, 0);
}

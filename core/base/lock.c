// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lock.h"

#include <errno.h>

__thread uint32_t pm_locks_held __attribute__((tls_model("initial-exec")));
#ifdef PM_DEBUG
__thread uint32_t pm_ranks_held __attribute__((tls_model("initial-exec")));
#endif

uint32_t pm_locks_lost;

#define SPINS 100

// Spins a little, because critical sections are short. Then it sleeps. A thread that may have slept
// takes the lock with the word 2, not 1, because others may still sleep. That may cause one
// needless wake-up, but no wake-up is lost (Drepper, "Futexes are tricky", mutex 2).
__attribute__((noinline, cold)) void pm_lock_slow(struct pm_lock *lock) {
    int saved = errno;
    for (int i = 0; i < SPINS; i++) {
        uint32_t free_word = 0;
        if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1,
                                                    memory_order_acquire, memory_order_relaxed))
            return;
        __builtin_ia32_pause();
    }
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        pm_futex_wait(&lock->word, 2);
    errno = saved;
}

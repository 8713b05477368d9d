// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A futex mutex of one word: no initialisation call, no dependency on libpthread's state, usable inside
// malloc before any constructor, and simply reset in a forked child.
//
// Locks are taken by rising rank; debug builds (-DPM_DEBUG) assert it. fork takes them in that order.
#ifndef PM_LOCK_H
#define PM_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum pm_lock_rank {
    PM_RANK_RUNTIME, // start, fork, exit
    PM_RANK_THREADS, // list of tcaches
    PM_RANK_BIN,     // one size class of one arena
    PM_RANK_EXTENT,  // extents, their lists, the bookkeeping log
    PM_RANKS
};

struct pm_lock {
    _Atomic uint32_t word; // 0 free, 1 held, 2 held and somebody may sleep
};

// Locks that this thread holds or is about to take; signal handlers look at it (guard.h).
extern __thread uint32_t pm_locks_held __attribute__((tls_model("initial-exec")));

#ifdef PM_DEBUG
#include <assert.h>
extern __thread uint32_t pm_ranks_held __attribute__((tls_model("initial-exec")));
#define PM_RANK_ENTER(rank)                                                                        \
    (assert((pm_ranks_held >> (rank)) == 0), (void)(pm_ranks_held |= 1u << (rank)))
#define PM_RANK_LEAVE(rank) ((void)(pm_ranks_held &= ~(1u << (rank))))
#define PM_RANK_FORGET() ((void)(pm_ranks_held = 0))
#else
#define PM_RANK_ENTER(rank) ((void)(rank))
#define PM_RANK_LEAVE(rank) ((void)(rank))
#define PM_RANK_FORGET() ((void)0)
#endif

static inline void pm_futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void pm_futex_wake(_Atomic uint32_t *word, int waiters) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, waiters, NULL, NULL, 0);
}

void pm_lock_slow(struct pm_lock *lock);

// Without a rank: for fork, which takes all bins, and they share one.
static inline void pm_lock_raw(struct pm_lock *lock) {
    uint32_t free_word = 0;
    pm_locks_held++;
    atomic_signal_fence(memory_order_seq_cst);
    // Acquire: what the last holder wrote is visible from here.
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1, memory_order_acquire,
                                                 memory_order_relaxed))
        pm_lock_slow(lock);
}

// Whether it got it; of two locks of one rank the second may only be tried.
static inline bool pm_trylock_raw(struct pm_lock *lock) {
    uint32_t free_word = 0;
    pm_locks_held++;
    atomic_signal_fence(memory_order_seq_cst);
    if (atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return true;
    pm_locks_held--;
    return false;
}

static inline void pm_unlock_raw(struct pm_lock *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        pm_futex_wake(&lock->word, 1);
    atomic_signal_fence(memory_order_seq_cst);
    pm_locks_held--;
}

static inline void pm_lock(struct pm_lock *lock, enum pm_lock_rank rank) {
    PM_RANK_ENTER(rank);
    pm_lock_raw(lock);
}

static inline void pm_unlock(struct pm_lock *lock, enum pm_lock_rank rank) {
    pm_unlock_raw(lock);
    PM_RANK_LEAVE(rank);
}

// In the only thread of a forked child: whatever it was, it is free now.
static inline void pm_lock_reset(struct pm_lock *lock) {
    atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
    pm_locks_held = 0;
    PM_RANK_FORGET();
}

#endif

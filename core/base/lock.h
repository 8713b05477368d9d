// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A futex mutex of one word. It needs no initialisation call and no state of libpthread. It can be
// used inside malloc before any constructor has run, and a forked child can reset it.
//
// Invariant: a thread takes locks by rising rank only; a lock of a rank that it holds already may
// only be tried. So no circle of threads can wait for each other. Builds with -DPM_DEBUG assert it.
// fork takes all locks in that order.
#ifndef PM_LOCK_H
#define PM_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum pm_lock_rank {
    PM_RANK_COMMIT = 1, // one commit at a time
    PM_RANK_AGE,        // the thread of PMALLOC_BACKGROUND at work
    PM_RANK_PROCESS,    // start, fork, exit
    PM_RANK_THREADS,    // the lists of thread caches
    PM_RANK_PINNED,     // caches of pinned blocks
    PM_RANK_BIN,        // one size class of one arena
    PM_RANK_DEALLOC,    // a log of frees of other nodes' pinned blocks
    PM_RANK_LANE,       // a lane, while a publish uses it
    PM_RANK_EXTENT,     // extents, the page map, lazy tables, the bookkeeping log
    PM_RANK_EMPTIED,    // what was released since the last commit
    PM_RANK_MARKS,      // what the program has asked of pages of its blocks
    PM_RANK_ADOPT,      // the first use of a lock in old memory
    PM_RANK_SENDING,    // one sender of answers at a time
    PM_RANK_OUTBOX,     // answers that wait for a commit
};

struct pm_lock {
    _Atomic uint32_t word; // 0 free, 1 held, 2 held and somebody may sleep
#ifdef PM_DEBUG
    uint32_t rank; // enum pm_lock_rank; 0: it has none yet
#endif
};

// How many locks this thread holds or is about to take. It is raised before a lock is taken and
// lowered after it is released. So a signal handler of this thread that reads 0 knows that the
// thread holds no lock (pm_nested).
extern __thread uint32_t pm_locks_held __attribute__((tls_model("initial-exec")));
// 1: in a child that skipped the handlers of a fork, what a lock guards is amid a change for good.
// Its thread then is one that holds a lock.
extern uint32_t pm_locks_lost;

// PM_LOCK(rank) is the initialiser of a free lock. pm_lock_init() gives a rank to a lock whose
// memory is all zero.
#ifdef PM_DEBUG
#include <assert.h>
extern __thread uint32_t pm_ranks_held __attribute__((tls_model("initial-exec")));
#define PM_LOCK(lock_rank)                                                                         \
    { .word = 0, .rank = (lock_rank) }
static inline void pm_lock_init(struct pm_lock *lock, enum pm_lock_rank rank) { lock->rank = rank; }
static inline void pm_rank_enter(const struct pm_lock *lock) {
    assert(lock->rank && pm_ranks_held >> lock->rank == 0);
    pm_ranks_held |= 1u << lock->rank;
}
static inline void pm_rank_leave(const struct pm_lock *lock) {
    pm_ranks_held &= ~(1u << lock->rank);
}
static inline void pm_ranks_forget(void) { pm_ranks_held = 0; }
#else
#define PM_LOCK(lock_rank)                                                                         \
    { .word = 0 }
static inline void pm_lock_init(struct pm_lock *lock, enum pm_lock_rank rank) {
    (void)lock, (void)rank;
}
static inline void pm_rank_enter(const struct pm_lock *lock) { (void)lock; }
static inline void pm_rank_leave(const struct pm_lock *lock) { (void)lock; }
static inline void pm_ranks_forget(void) {}
#endif

static inline void pm_futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0L);
}

// For that long at most. False, with errno: nobody has woken it.
static inline bool pm_futex_wait_us(_Atomic uint32_t *word, uint32_t seen, uint64_t us) {
    const struct timespec most = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0L) == 0;
}

static inline void pm_futex_wake(_Atomic uint32_t *word, int waiters) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, waiters, NULL, NULL, 0L);
}

void pm_lock_slow(struct pm_lock *lock);

// Takes a lock without a check of its rank. For fork, which takes all bins' locks; these share one
// rank.
static inline void pm_lock_raw(struct pm_lock *lock) {
    uint32_t free_word = 0;
    pm_locks_held++;
    atomic_signal_fence(memory_order_seq_cst);
    // Acquire: what the last holder wrote is visible from here.
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1, memory_order_acquire,
                                                 memory_order_relaxed))
        pm_lock_slow(lock);
}

// Takes the lock if it is free. Returns whether it did. Does not check the rank.
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

// Release: the next holder sees what this one wrote. A sleeper is woken only if the word says that
// there may be one.
static inline void pm_unlock_raw(struct pm_lock *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        pm_futex_wake(&lock->word, 1);
    atomic_signal_fence(memory_order_seq_cst);
    pm_locks_held--;
}

static inline void pm_lock(struct pm_lock *lock) {
    pm_rank_enter(lock);
    pm_lock_raw(lock);
}

static inline void pm_unlock(struct pm_lock *lock) {
    pm_unlock_raw(lock);
    pm_rank_leave(lock);
}

// For the only thread of a forked child: makes the lock free, whoever held it.
static inline void pm_lock_reset(struct pm_lock *lock) {
    atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
    pm_locks_held = pm_locks_lost;
    pm_ranks_forget();
}

#endif

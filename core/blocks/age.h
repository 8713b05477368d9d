// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Age: free memory that is kept goes with time, of all arenas and all threads.
//
//   extent caches     what nobody wanted for a tenth to a fifth of it (extent_cache.h)
//   empty slabs       what a bin did not need for a quarter of it; the last one after all of it
//   slabs' pages      without a block in use, where these are half of the slab or more, in slabs
//                     that were not used for half to all of it (holes.h)
//   reclaimed pages   along the curve of decay (base/decay.h)
//   thread caches     of threads that have not asked for half to all of the decay time; only where
//                     a thread of PMAlloc's looks, because it takes membarrier(2)
//
// Time alone does nothing: some thread has to look. By default that is any thread at every 32nd of
// its slow requests, and a thread that ends. So a process that asks for nothing keeps what it has.
// Under PMALLOC_BACKGROUND=decay a thread of PMAlloc's looks (commit/background.h). It sleeps
// while there is nothing to wait for, and the next slow request wakes it.
//
// No function here is called with another lock held.
#ifndef PM_AGE_H
#define PM_AGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

// Does a small part of what is due.
void pm_age(void);
// Does all that is due, and takes back the caches of threads that rest.
void pm_age_all(void);
// Punches all pages without a block in use, whatever their age: for malloc_trim, and where the
// medium is full. Returns how many.
uint64_t pm_age_punch(void);
// A number that changes when blocks or extents were taken or returned, or when age did something.
uint64_t pm_age_activity(void);

// A futex. 1: the thread of PMAlloc's sleeps until somebody asks for memory or returns some.
extern _Atomic uint32_t pm_age_asleep;
void pm_age_wake(void);
// Makes the next free of each thread, and into each extent cache, a slow request.
void pm_age_arm(void);
// Called by every slow request.
static inline void pm_age_notice(void) {
    // Relaxed: a request that just misses the flag leaves it to the next one.
    if (__builtin_expect(atomic_load_explicit(&pm_age_asleep, memory_order_relaxed) != 0, 0))
        pm_age_wake();
}

#endif

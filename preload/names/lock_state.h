// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What an object of <pthread.h> says about threads, and how to clear that. Each function takes an
// object that no living thread uses. It clears the object's state and keeps its attributes. It does
// not store where nothing changes.
//
//   object     cleared                           kept
//   mutex      holder, count, waiters            kind, protocol, ceiling, robustness, shared or not
//   rwlock     readers, writer, waiters          preference, shared or not
//   cond       waiters, signals under way        clock, shared or not
//   barrier    arrivals                          count, shared or not
//   spinlock   the lock
//   once       "in progress"                     "done"
//
// A robust mutex that was held becomes what the kernel makes of it when its holder dies: free, and
// the next locker gets EOWNERDEAD. Semaphores are not here: their value is data, and the count of
// waiters beside it only causes a needless wake-up.
#ifndef PM_LOCK_STATE_H
#define PM_LOCK_STATE_H

// Finds out which words of the objects are attributes. Thread-safe. It calls libc, so call it
// before pm_adopt_begin().
void pm_lock_state_learn(void);

void pm_reset_mutex(void *object);
void pm_reset_rwlock(void *object);
void pm_reset_cond(void *object);
void pm_reset_barrier(void *object);
void pm_reset_spin(void *object);
void pm_reset_once(void *object);

#endif

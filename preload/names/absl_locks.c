// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// absl::Mutex and absl::CondVar of abseil's shared library, in the namespaces that Debian's and
// Ubuntu's releases give it. Where a program contains abseil its calls do not come here.
//
//   inline namespace   abseil
//   debian3            20220623: Debian 12, Ubuntu 24.04
//   debian7            20240722: Debian 13
//   debian9, debian10  20260107, 20260526
//
// A writer's and a reader's lock count alike. While a thread awaits a condition the mutex is free.
// WriterLock() and what else the header has inline calls these.
#include <stdint.h>

#include "foreign.h"

// Both are a word, in which 0 means that nobody has or awaits it. Others' waiters are no more.
static void reset_absl(void *object) { *(volatile uint64_t *)object = 0; }
static void adopt_absl(const void *object) { foreign_adopt(object, reset_absl); }

// absl::Time is passed in two registers, KernelTimeout in one.
struct absl_time {
    int64_t high;
    uint32_t low;
};

// `n` makes names for this code, `ns` is the namespace as a part of symbols.
#define MUTEX(ns, member) "_ZN4absl" ns "5Mutex" member
#define CONDVAR(ns, member) "_ZN4absl" ns "7CondVar" member
#define CONDITION "ERKNS0_9Condition"
#define TIMEOUT "ENS0_24synchronization_internal13KernelTimeoutE"

#define LOCK(n, ns, member) FOREIGN_TAKE(n, MUTEX(ns, member), (void *o), (o), adopt_absl(o))
#define TRY_LOCK(n, ns, member)                                                                    \
    FOREIGN_TRY(bool, n, MUTEX(ns, member), (void *o), (o), adopt_absl(o))
#define UNLOCK(n, ns, member) FOREIGN_GIVE(n, MUTEX(ns, member), (void *o), (o))

// In all of them.
#define WAITS(n, ns)                                                                               \
    FOREIGN_WAIT_UNTIL(bool, await_##n, MUTEX(ns, "11AwaitCommon" CONDITION TIMEOUT),              \
                       (void *o, const void *condition, uint64_t until), (o, condition, until),    \
                       adopt_absl(o))                                                              \
    FOREIGN_WAIT_UNTIL(bool, wait_##n, CONDVAR(ns, "10WaitCommonEPNS0_5Mutex" TIMEOUT),            \
                       (void *cond, void *o, uint64_t until), (cond, o, until), adopt_absl(cond))  \
    FOREIGN_CALL(signal_##n, CONDVAR(ns, "6SignalEv"), (void *cond), (cond), adopt_absl(cond))     \
    FOREIGN_CALL(signal_all_##n, CONDVAR(ns, "9SignalAllEv"), (void *cond), (cond),                \
                 adopt_absl(cond))

#define NAMES(n, ns, lock, reader_lock, try_lock, reader_try_lock, unlock, reader_unlock)          \
    WAITS(n, ns)                                                                                   \
    LOCK(lock_##n, ns, lock)                                                                       \
    LOCK(reader_lock_##n, ns, reader_lock)                                                         \
    TRY_LOCK(try_lock_##n, ns, try_lock)                                                           \
    TRY_LOCK(reader_try_lock_##n, ns, reader_try_lock)                                             \
    UNLOCK(unlock_##n, ns, unlock)                                                                 \
    UNLOCK(reader_unlock_##n, ns, reader_unlock)
#define OLD_NAMES(n, ns)                                                                           \
    NAMES(n, ns, "4LockEv", "10ReaderLockEv", "7TryLockEv", "13ReaderTryLockEv", "6UnlockEv",      \
          "12ReaderUnlockEv")
#define NEW_NAMES(n, ns)                                                                           \
    NAMES(n, ns, "4lockEv", "11lock_sharedEv", "8try_lockEv", "15try_lock_sharedEv", "6unlockEv",  \
          "13unlock_sharedEv")

// Takes the lock when a condition holds, or when the time is over.
#define LOCK_WHEN(n, ns)                                                                           \
    FOREIGN_TAKE_ALWAYS(bool, lock_when_##n, MUTEX(ns, "14LockWhenCommon" CONDITION TIMEOUT "b"),  \
                        (void *o, const void *condition, uint64_t until, bool writes),             \
                        (o, condition, until, writes), adopt_absl(o))
#define OLD_LOCK_WHEN(n, ns)                                                                       \
    FOREIGN_TAKE(lock_when_##n, MUTEX(ns, "8LockWhen" CONDITION "E"),                              \
                 (void *o, const void *condition), (o, condition), adopt_absl(o))                  \
    FOREIGN_TAKE(reader_lock_when_##n, MUTEX(ns, "14ReaderLockWhen" CONDITION "E"),                \
                 (void *o, const void *condition), (o, condition), adopt_absl(o))                  \
    FOREIGN_TAKE_ALWAYS(bool, lock_when_until_##n,                                                 \
                        MUTEX(ns, "20LockWhenWithDeadline" CONDITION "ENS0_4TimeE"),               \
                        (void *o, const void *condition, struct absl_time until),                  \
                        (o, condition, until), adopt_absl(o))                                      \
    FOREIGN_TAKE_ALWAYS(bool, reader_lock_when_until_##n,                                          \
                        MUTEX(ns, "26ReaderLockWhenWithDeadline" CONDITION "ENS0_4TimeE"),         \
                        (void *o, const void *condition, struct absl_time until),                  \
                        (o, condition, until), adopt_absl(o))

OLD_NAMES(3, "7debian3")
OLD_LOCK_WHEN(3, "7debian3")
OLD_NAMES(7, "7debian7")
LOCK_WHEN(7, "7debian7")
NEW_NAMES(9, "7debian9")
LOCK_WHEN(9, "7debian9")
NEW_NAMES(10, "8debian10")
LOCK_WHEN(10, "8debian10")

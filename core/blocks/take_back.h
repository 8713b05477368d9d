// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Takes back what is kept although it is free: blocks in thread caches, and empty slabs in bins.
// For malloc_trim(), and for a request that would fail otherwise.
//
// Another thread's stacks are emptied at once, whether that thread runs, sleeps or is about to
// wake. Its requests seize a stack by one instruction without a lock prefix (tcache.h), so an
// atomic instruction here alone does not exclude them. The order is:
//
//   1  lock cmpxchg: `seized` of a stack that is open, 0, becomes PM_STACK_TAKEN
//   2  membarrier(2): each thread passes a full barrier, between two of its instructions
//   3  `seized` is read again. Above 0: the blocks are ours. Else they are the owner's
//
// Why this is sound. Take any seizure by the owner: one instruction, which loads `seized` and
// stores 1 less.
//
// - It has run before 2, as that thread sees 2. Its store is visible in 3. If its load came before
//   1, either its store did too, and 1 found the stack seized or as the request left it; or its
//   store came after 1 and has overwritten PM_STACK_TAKEN. The owner stores a value above 0 only
//   where it has loaded one, so 3 finds none, and the blocks stay the owner's. If its load came
//   after 1, it has found the stack seized, and takes nothing.
// - It runs after 2: it sees what 1 has stored, or that the stack is the owner's because 3 will
//   find so.
//
// Where 3 finds a value above 0, n and the blocks are as the owner's last request left them. It
// stores them before it stores 0 to `seized`, and x86 keeps the order of a thread's stores.
//
// An interrupt comes between instructions, so no seizure is half before 2 and half after. A thread
// that does not run has passed a full barrier when it was stopped, and passes one when it goes on.
// A request that a signal handler has interrupted has seized the stack, then 1 leaves it alone; or
// it has not read anything of it yet, as if it had not begun.
//
// An emptied stack stays seized until its owner opens it in its next slow request. Only the owner
// can: it may be looking at the stack at this moment, and would add 1.
//
// Where the kernel refuses membarrier(2), each owner is asked to return its blocks itself, at its
// next slow request. Its next free is one (pm_tcache.granules).
#ifndef PM_TAKE_BACK_H
#define PM_TAKE_BACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Counts since the process began; relaxed.
struct pm_take_back_counters {
    _Atomic uint64_t times;  // that something was taken back
    _Atomic uint64_t blocks; // taken out of other threads' caches
    _Atomic uint64_t asked;  // caches whose owners were asked instead
    _Atomic uint64_t failed; // requests that found no memory even so
};
extern struct pm_take_back_counters pm_take_back_counters;

// Takes back everything that is kept. False: there was nothing. The caller holds no lock. errno is
// kept.
bool pm_take_back(void);
// Takes back the cached blocks of other threads that look as if they had made no request since the
// last call: their stacks have the same heights. The caller holds no lock.
void pm_take_back_idle(void);

#endif

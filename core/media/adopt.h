// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Old memory, and the locks in it that this run has used already. A lock in old memory may say that
// it is held by a thread which no longer exists. The thread that uses a lock first in this run
// clears its state (preload/names/lock_state.h). From then on the lock is adopted. "Object" means
// such a lock here: a mutex, a condition variable, and so on.
//
//   heap   [ base, frontier at the start )   blocks of earlier runs, and new ones of this run
//   root   [ its restored bytes )            as the last run left them
//
// One bit for each 4 bytes says that an object which starts there is adopted. Bits only go from 0
// to 1: an object that is allocated there later belongs to this run, too. All other memory belongs
// to this run. A new heap has no old memory: then a check costs two comparisons with empty ranges.
#ifndef PM_ADOPT_H
#define PM_ADOPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/message.h"

struct pm_old_range {
    uintptr_t start;
    _Atomic size_t len; // stored last: who sees the length also sees the other fields
    _Atomic uint64_t *adopted;
};

struct pm_old {
    struct pm_old_range heap;
    uintptr_t roots; // every restored root lies in [roots, roots + roots_len)
    _Atomic size_t roots_len;
};
extern struct pm_old pm_old __attribute__((aligned(64), visibility("hidden")));
extern struct pm_lock pm_adopt_lock;

// These bytes are old memory: the first `bytes` of the heap; a restored root. Called at the start,
// before another thread can use them. PM_OPERATIONAL without address space for the bits.
int pm_old_heap(uint64_t bytes, struct pm_error *err);
int pm_old_root(uintptr_t start, size_t len, struct pm_error *err);

static inline bool pm_old_bit(const struct pm_old_range *range, size_t offset) {
    // Acquire: a thread that sees the bit also sees the object as the adopting thread left it.
    uint64_t word = atomic_load_explicit(&range->adopted[offset / 256], memory_order_acquire);
    return word >> offset / 4 % 64 & 1;
}

// The quick check. True: the object is of this run, or adopted. False: ask pm_adopted().
static inline bool pm_surely_adopted(const void *object) {
    uintptr_t at = (uintptr_t)object;
    size_t heap = atomic_load_explicit(&pm_old.heap.len, memory_order_relaxed);
    if (__builtin_expect(at - pm_old.heap.start < heap, 0))
        return pm_old_bit(&pm_old.heap, at - pm_old.heap.start);
    return at - pm_old.roots >= atomic_load_explicit(&pm_old.roots_len, memory_order_relaxed);
}

bool pm_adopted(const void *object);
// True for one thread: it must clear the object's state and call pm_adopt_end(). Meanwhile other
// threads wait. False: the object is adopted. Signals are blocked between the two calls, because a
// handler may use the same object.
bool pm_adopt_begin(const void *object);
void pm_adopt_end(const void *object);
// The object is being made: it is adopted without clearing.
void pm_adopt_fresh(const void *object);

#endif

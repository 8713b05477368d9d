// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Lists of extents without a lock: stacks, linked by pm_extent.next. Any thread may put on and take
// off, and none waits for another. A signal handler may, too.
//
// A change is one compare-and-exchange of the head. Its low 30 bits are the index of the newest
// extent; above them is a number that every change raises. So a head that is seen twice is the same
// list: a thread would have to sleep through 2^34 changes between its load and its exchange for the
// number to come back. `next` of an extent that another thread has taken meanwhile may be anything;
// then the head has changed, and the exchange fails.
#ifndef PM_EXTENT_LIST_H
#define PM_EXTENT_LIST_H

#include <stdatomic.h>
#include <stdint.h>

#include "pages/extent.h"

typedef _Atomic uint64_t pm_extent_list;

#define PM_LIST_INDEX ((1ull << 30) - 1)
_Static_assert((uint64_t)PM_SHARDS << PM_INDEX_SHIFT <= PM_LIST_INDEX + 1, "every index fits");

// The head after a change: `index` is the newest extent, 0: the list is empty.
static inline uint64_t pm_list_head(uint64_t head, uint32_t index) {
    return ((head & ~PM_LIST_INDEX) + PM_LIST_INDEX + 1) | index;
}

// Puts the extents from `first` to `last`, linked by `next`, on top.
static inline void pm_list_push(pm_extent_list *list, uint32_t first, struct pm_extent *last) {
    uint64_t head = atomic_load_explicit(list, memory_order_relaxed);
    do
        __atomic_store_n(&last->next, (uint32_t)(head & PM_LIST_INDEX), __ATOMIC_RELAXED);
    // Release: `next`, and what else was written to the headers, comes before the head.
    while (!atomic_compare_exchange_weak_explicit(list, &head, pm_list_head(head, first),
                                                  memory_order_release, memory_order_relaxed));
}

// Takes the newest extent; 0: the list is empty. `extents` points to pm_extents or a copy of it. It
// is read after the head: a thread or handler that fills in the copy does so before its first push.
static inline uint32_t pm_list_pop(pm_extent_list *list, struct pm_extent *const *extents) {
    uint64_t head = atomic_load_explicit(list, memory_order_acquire), then;
    do {
        if (!(head & PM_LIST_INDEX))
            return 0;
        const struct pm_extent *e = &(*extents)[head & PM_LIST_INDEX];
        then = pm_list_head(head, __atomic_load_n(&e->next, __ATOMIC_RELAXED));
        // Acquire: it pairs with the release of the push.
    } while (!atomic_compare_exchange_weak_explicit(list, &head, then, memory_order_acquire,
                                                    memory_order_acquire));
    return (uint32_t)(head & PM_LIST_INDEX);
}

// Takes all extents; returns the newest. They are the caller's alone.
static inline uint32_t pm_list_seize(pm_extent_list *list) {
    uint64_t head = atomic_load_explicit(list, memory_order_acquire);
    while (head & PM_LIST_INDEX &&
           !atomic_compare_exchange_weak_explicit(list, &head, pm_list_head(head, 0),
                                                  memory_order_acquire, memory_order_acquire)) {
    }
    return (uint32_t)(head & PM_LIST_INDEX);
}

#endif

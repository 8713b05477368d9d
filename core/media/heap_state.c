// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_state.h"

_Atomic uint32_t pm_heap_state_word = PM_HEAP_CLOSED;

const struct pm_machine pm_heap_machine = {
    .what = "the heap",
    .state = {
        [PM_HEAP_CLOSED] = {"closed", PM_MAY(PM_HEAP_SHARED) | PM_MAY(PM_HEAP_VOLATILE)},
        [PM_HEAP_SHARED] = {"shared", PM_MAY(PM_HEAP_CLOSED) | PM_MAY(PM_HEAP_PARTED) |
                                          PM_MAY(PM_HEAP_BORROWED) | PM_MAY(PM_HEAP_JOURNALED)},
        [PM_HEAP_JOURNALED] = {"journaled", PM_MAY(PM_HEAP_PARTED)},
        [PM_HEAP_PARTED] = {"parted", PM_MAY(PM_HEAP_SHARED) | PM_MAY(PM_HEAP_PRIVATE)},
        [PM_HEAP_PRIVATE] = {"private", 0},
        [PM_HEAP_VOLATILE] = {"volatile", 0},
        [PM_HEAP_BORROWED] = {"borrowed", 0},
    }};

// Relaxed: a thread that must see the new state takes a lock that the caller held, or is stopped
// meanwhile.
void pm_heap_become(enum pm_heap_state next) {
    pm_machine_check(&pm_heap_machine, pm_heap_state(), next);
    atomic_store_explicit(&pm_heap_state_word, next, memory_order_relaxed);
}

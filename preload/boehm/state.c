// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The lock of this folder, and figures.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "boehm.h"

bool pm_gc_ready, pm_gc_marking;
struct pm_gc_figures pm_gc_figures;
__thread long pm_gc_budget __attribute__((tls_model("initial-exec")));

static _Atomic uintptr_t owner; // the address of a variable of the thread
static unsigned depth;

static uintptr_t me(void) { return (uintptr_t)&pm_gc_budget; }

bool pm_gc_trylock(void) {
    uintptr_t none = 0;
    if (atomic_load_explicit(&owner, memory_order_relaxed) != me() &&
        !atomic_compare_exchange_strong_explicit(&owner, &none, me(), memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    depth++;
    return true;
}

// Sleeps outside of this library's code, so that the owner can hold this thread.
void pm_gc_lock(void) {
    const struct timespec pause = {0, 50000};
    for (unsigned i = 0; !pm_gc_trylock(); i++)
        if (i > 100)
            syscall(SYS_nanosleep, &pause, NULL);
        else
            __builtin_ia32_pause();
}

void pm_gc_unlock(void) {
    if (--depth == 0)
        atomic_store_explicit(&owner, 0, memory_order_release);
}

bool pm_gc_locked_once(void) { return depth == 1; }

uint64_t pm_gc_bytes_since(void) {
    int64_t since = (int64_t)pm_gc_figures.since + (pm_gc_budget ? PM_GC_TICK - pm_gc_budget : 0);
    return since > 0 ? (uint64_t)since : 0;
}

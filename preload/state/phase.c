// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "phase.h"

#include <time.h>

#include "base/decay.h"
#include "blocks/pinned_cache.h"
#include "blocks/tcache.h"
#include "media/adopt.h"
#include "media/backing/marks.h"
#include "media/log/dealloc.h"
#include "media/log/lanes.h"
#include "pages/extent.h"

_Atomic uint32_t pm_phase_word;
struct pm_lock pm_commit_lock = PM_LOCK(PM_RANK_COMMIT);
_Atomic uint32_t pm_commit_lock_awaited; // in a forked child: only by its own threads
struct pm_lock pm_process_lock = PM_LOCK(PM_RANK_PROCESS);

const struct pm_machine pm_phase_machine = {
    .what = "the process",
    .state = {
        [PM_COLD] = {"cold", PM_MAY(PM_STARTING)},
        [PM_WAITING] = {"waiting", PM_MAY(PM_STARTING)},
        [PM_STARTING] = {"starting", PM_MAY(PM_READY) | PM_MAY(PM_WAITING)},
        [PM_READY] = {"ready", PM_MAY(PM_RUNNING) | PM_MAY(PM_ENDING) | PM_MAY(PM_ENDED)},
        [PM_RUNNING] = {"running", PM_MAY(PM_ENDING) | PM_MAY(PM_ENDED)},
        [PM_ENDING] = {"ending", PM_MAY(PM_ENDED) | PM_MAY(PM_DOOMED) | PM_MAY(PM_RUNNING)},
        [PM_ENDED] = {"ended", 0},
        [PM_DOOMED] = {"doomed", 0},
    }};

bool pm_phase_move(enum pm_phase from, enum pm_phase to) {
    uint32_t seen = from;
    pm_machine_check(&pm_phase_machine, from, to);
    return atomic_compare_exchange_strong(&pm_phase_word, &seen, to);
}

void pm_phase_forked(void) {
    pm_phase_move(PM_ENDING, PM_RUNNING);
    atomic_store_explicit(&pm_commit_lock_awaited, 0, memory_order_relaxed);
}

static _Atomic bool main_runs;

void pm_phase_main_begins(void) { atomic_store_explicit(&main_runs, true, memory_order_relaxed); }

bool pm_phase_main_runs(void) { return atomic_load_explicit(&main_runs, memory_order_relaxed); }

// ---- who starts ---------------------------------------------------------------------------------

static _Atomic(void *) starter; // the thread that starts, by the address of its pm_tcache

// With a lock held, the requests of a signal handler go to the fallback arena.
bool pm_phase_claim(enum pm_phase seen) {
    pm_locks_held++;
    atomic_signal_fence(memory_order_seq_cst);
    bool mine = pm_phase_move(seen, PM_STARTING);
    if (mine)
        atomic_store_explicit(&starter, &pm_tcache, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    pm_locks_held--;
    return mine;
}

bool pm_phase_starts_here(void) {
    return atomic_load_explicit(&starter, memory_order_relaxed) == &pm_tcache;
}

static _Atomic bool awaited; // by a thread, at some time

// Sequentially consistent, and so is the move: the starter wakes the thread, or the thread sees
// that the phase has moved on.
void pm_phase_await_start(void) {
    atomic_store(&awaited, true);
    pm_futex_wait(&pm_phase_word, PM_STARTING);
}

void pm_phase_started(enum pm_phase next) {
    pm_phase_move(PM_STARTING, next);
    if (atomic_load(&awaited))
        pm_futex_wake(&pm_phase_word, 1 << 30);
}

static bool held; // STARTING is held for a fork. Written by the thread that starts.

bool pm_phase_hold_start(void) {
    enum pm_phase seen;
    while ((seen = pm_phase()) < PM_READY) {
        if (seen == PM_WAITING && pm_phase_claim(seen))
            return held = true;
        if (seen == PM_STARTING && pm_phase_starts_here())
            return true; // a signal handler of the thread that opens the heap has forked
        pm_phase_await_start();
    }
    return false;
}

void pm_phase_release_start(void) {
    if (!held)
        return;
    held = false;
    pm_phase_started(PM_WAITING);
}

// ---- locks --------------------------------------------------------------------------------------

void pm_commit_lock_take(void) {
    const struct timespec pause = {0, 200000};
    atomic_fetch_add_explicit(&pm_commit_lock_awaited, 1, memory_order_relaxed);
    while (!pm_trylock_raw(&pm_commit_lock))
        syscall(SYS_nanosleep, &pause, NULL);
    atomic_fetch_sub_explicit(&pm_commit_lock_awaited, 1, memory_order_relaxed);
}

// No arena is made meanwhile: that needs pm_tcache_lock.
static void lock_bins(void (*step)(struct pm_lock *)) {
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; pm_arena_is_made(&pm_arenas[a]) && cls <= PM_CLASSES; cls++)
            step(&pm_arenas[a].bin[cls].lock);
}

void pm_process_each_lock(void (*step)(struct pm_lock *)) {
    step(&pm_commit_lock);
    step(&pm_age_lock);
    step(&pm_process_lock);
    step(&pm_tcache_lock);
    for (unsigned i = 0; i < PM_PINNED_LOCKS; i++)
        step(&pm_pinned_locks[i].lock);
    lock_bins(step);
    pm_dealloc_each_lock(step);
    for (unsigned i = 0; i < PM_LANES; i++)
        step(&pm_lane_locks[i]);
    for (unsigned i = 0; i < PM_SHARDS; i++) // of all that there may be: a thread may make one
        step(&pm_heap.shard[i].lock);
    step(&pm_marks_lock);
    step(&pm_adopt_lock);
}

static bool any_locked;

static void look_at_lock(struct pm_lock *lock) {
    any_locked |= atomic_load_explicit(&lock->word, memory_order_acquire) != 0;
}

bool pm_process_any_locked(void) {
    any_locked = false;
    pm_process_each_lock(look_at_lock);
    return any_locked;
}

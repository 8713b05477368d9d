// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "end_held.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "base/cancel.h"
#include "base/decay.h"
#include "base/os.h"
#include "commit/background.h"
#include "commit/commit_mode.h"
#include "media/heap.h"
#include "sandbox.h"
#include "state/phase.h"
#include "threads/commit_gate.h"
#include "threads/hold.h"
#include "threads/sections.h"
#include "threads/tasks.h"
#include "threads/threads.h"

// The first tries are short: after them it is known whether waiting helps.
#define FIRST_TRIES 2
#define TRIES 5
#define FIRST_MS 200
#define LATER_MS 1000
#define PATIENCE_MS 5000 // for a commit or a fork of another thread's, and with slow paths
#define LOOK_MS 100

_Atomic bool pm_end_lock_waits;

static void rest(void) {
    const struct timespec pause = {0, 500000};
    nanosleep(&pause, NULL);
}

// Who has it may wait for a thread that a debugger has stopped.
static bool await_commit_lock(void) {
    uint64_t until = pm_os_now_ms() + PATIENCE_MS, look = pm_os_now_ms() + LOOK_MS;
    while (!pm_trylock_raw(&pm_commit_lock)) {
        uint64_t now = pm_os_now_ms();
        if (now >= until || (now >= look && pm_threads_stopped()))
            return false;
        look = now >= look ? now + LOOK_MS : look;
        rest();
    }
    return true;
}

static bool take_commit_lock(void) {
    atomic_fetch_add_explicit(&pm_commit_lock_awaited, 1, memory_order_relaxed);
    bool taken = await_commit_lock();
    atomic_fetch_sub_explicit(&pm_commit_lock_awaited, 1, memory_order_relaxed);
    return taken;
}

// Nobody can take a lock that is free now. Those that a hold takes are this thread's own, and what
// it does next takes locks as ever.
static bool is_quiet(void) { return !pm_process_any_locked() && !pm_hold_met_inside(); }

// It waits for threads without a processor, too. Once it has done so in vain any instant will do.
static bool hold(bool by_gate, uint64_t timeout_ms) {
    struct pm_gate_passed passed;
    if (!by_gate)
        return pm_hold_all(timeout_ms);
    enum pm_gate_wish wish = pm_commits_are_strict() ? PM_GATE_STRICT : PM_GATE_PATIENCE;
    return pm_gate_hold(timeout_ms, wish, &passed) == PM_GATE_HELD;
}

// PMAlloc's own thread, which alone would take the lock of its work without a look at the hold, is
// no more.
static bool hold_quietly(bool by_gate, uint64_t timeout_ms, bool *inside) {
    bool commits = pm_heap_is_journaled();
    if (commits && !take_commit_lock())
        return false;
    bool held = hold(by_gate, timeout_ms);
    if (held)
        pm_unlock(&pm_age_lock);
    if (commits)
        pm_unlock_raw(&pm_commit_lock);
    *inside = held && !is_quiet();
    if (*inside)
        pm_end_release();
    return held && !*inside;
}

// A new thread blocks signals for a moment.
static bool is_hopeless(unsigned tries) {
    enum pm_threads_ears ears = pm_threads_unheard();
    return pm_threads_stopped() || (ears == PM_THREADS_UNHEARD && tries + 1 >= FIRST_TRIES) ||
           (ears == PM_THREADS_NOT_SURE && tries >= FIRST_TRIES);
}

static void nothing(pid_t id, void *arg) { (void)id, (void)arg; }

// Not where /proc is of another PID namespace, or missing: there may be no other thread at all.
static bool are_seen(void) { return pm_tasks_each_other(nothing, NULL); }

enum pm_end_hold pm_end_hold(bool *between) {
    if (pm_nested() || pm_background_runs() || pm_sandbox_forbids_hold() || !pm_hold_prepare() ||
        !are_seen())
        return PM_END_NOT_HERE;
    pm_sections_begin();
    uint64_t until = pm_os_now_ms() + PATIENCE_MS;
    bool inside = false;
    for (unsigned tries = 0; tries < TRIES; tries += !inside) {
        if (hold_quietly(tries == 0, tries < FIRST_TRIES ? FIRST_MS : LATER_MS, &inside)) {
            *between = pm_gate_is_between();
            return PM_END_HELD;
        }
        bool waits = atomic_load_explicit(&pm_end_lock_waits, memory_order_acquire);
        if (inside ? waits || pm_os_now_ms() > until : is_hopeless(tries))
            break;
        rest();
    }
    return PM_END_NOT_STILL;
}

void pm_end_release(void) {
    pm_lock(&pm_age_lock);
    pm_gate_release();
}

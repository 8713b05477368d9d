// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "background.h"

#include <errno.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/decay.h"
#include "base/looker.h"
#include "base/options.h"
#include "base/os.h"
#include "base/proc.h"
#include "base/signal_stack.h"
#include "blocks/age.h"
#include "blocks/tcache.h"
#include "commit_bound.h"
#include "commit_rounds.h"
#include "commits.h"
#include "idle.h"
#include "late.h"
#include "media/heap_state.h"
#include "outbox.h"
#include "recovery/beside.h"
#include "state/phase.h"
#include "threads/calls.h"
#include "threads/hold.h"
#include "threads/sections.h"
#include "threads/thread_memory.h"

#define STACK_BYTES ((size_t)64 << 10)
#define TURNS 16u // in the decay time
#define QUIET 2u  // decay times in which nothing happens before it sleeps
#define STOP_MS 1000u
#define AGAIN_MS 100u  // after a commit by time that could not be made
#define COMMIT_US 500u // between two looks whether a commit is over
#define LATE_MS 1000u
#define AWAITED_US 100u // for who waits for a lock that a step has held

static _Atomic uint32_t quit;  // 1: the thread is to end
static _Atomic uint32_t begun; // 1: it has its name

// ---- the thread ---------------------------------------------------------------------------------

static bool is_over(void) { return atomic_load_explicit(&quit, memory_order_acquire); }

// Sleeps until there is a slow request. Whoever comes after the flag is set wakes this thread;
// whoever came before has changed the activity.
static void sleep_long(uint64_t seen) {
    atomic_store(&pm_age_asleep, 1);
    pm_age_arm();
    if (!is_over() && pm_age_activity() == seen)
        pm_futex_wait(&pm_age_asleep, 1);
    atomic_store(&pm_age_asleep, 0);
}

static void work(void) {
    pm_lock(&pm_age_lock);
    if (!is_over())
        pm_age_all();
    pm_unlock(&pm_age_lock);
}

static bool decays(void) {
    return pm_options.background.number == PM_BACKGROUND_DECAY && pm_options.decay_ms.number;
}

// It has all thread-local variables of its maker's at first.
static void be_own_thread(void) {
    pm_thread_memory_own();
    pm_tcache = &pm_no_tcache;
    pm_calls_own = NULL;
    pm_cancel_asynchronous = true; // libc's cancellation points would look at its data of a thread
    syscall(SYS_prctl, PR_SET_NAME,
            pm_commit_bound_wanted() ? "pmalloc-commit"
            : decays()               ? "pmalloc-decay"
                                     : "pmalloc-late");
    atomic_store_explicit(&begun, 1, memory_order_release);
    pm_futex_wake(&begun, 1);
}

static void wait_us(uint64_t us) { pm_futex_wait_us(&quit, 0, us); }

// Marking only needs that forks and the end of the program stay away. A step of the sweep changes
// the heap, so no commit may have its instant meanwhile; and the snapshot goes with the last step,
// which no commit may be about to use.
static void collect_step(void) {
    bool commits = pm_beside_counters.stage == PM_BESIDE_MARK;
    if (!commits && !pm_trylock_raw(&pm_commit_lock)) {
        wait_us(COMMIT_US);
        return;
    }
    pm_lock(&pm_age_lock);
    static struct pm_error err; // the stack is small
    if (!is_over() && !pm_beside_step(PM_BESIDE_STEP, &err))
        pm_refuse(pm_event_of(&err), "%s", err.text);
    bool awaited = atomic_load_explicit(&pm_age_lock.word, memory_order_relaxed) == 2;
    pm_unlock(&pm_age_lock);
    if (!commits)
        pm_unlock_raw(&pm_commit_lock);
    if (awaited || !commits) // the lock is not fair, and who wants to commit only looks at times
        wait_us(AWAITED_US);
}

static void say_collected(void) {
    if (pm_options.verbose.number && pm_beside_counters.stage == PM_BESIDE_DONE)
        pm_event(PM_EV_COLLECTED,
                 "heap %.300s: collected beside the program: %lu blocks, %lu bytes were garbage at "
                 "the start; done after %.3f s",
                 pm_heap.dir, (unsigned long)pm_beside_counters.blocks,
                 (unsigned long)pm_beside_counters.bytes,
                 1e-3 * (double)pm_beside_counters.milliseconds);
}

// Sleeps for `ms` milliseconds, or collects.
static void wait_ms(uint64_t ms) {
    uint64_t until = pm_os_now_ms() + ms, now;
    bool on = pm_beside_is_on();
    while (!is_over() && pm_beside_is_on() && pm_os_now_ms() < until) {
        if (pm_late_looks()) // threads stay before their calls until the roots are restored
            pm_late_look();
        collect_step();
    }
    if (on && !pm_beside_is_on())
        say_collected();
    while (!is_over() && pm_late_looks() && pm_os_now_ms() < until)
        wait_us(pm_late_look());
    while (!is_over() && pm_outbox_looks() && pm_os_now_ms() < until)
        wait_us(pm_outbox_look());
    if (is_over() || (now = pm_os_now_ms()) >= until)
        return;
    pm_commits_bring(); // if whoever was to had no lock for it
    if (pm_outbox_on)
        pm_outbox_sleep((until - now) * 1000);
    else
        wait_us((until - now) * 1000);
}

static void run_decay(void) {
    uint64_t decay = pm_options.decay_ms.number, seen = 0, since = 0;
    uint64_t pause = decay / TURNS ? decay / TURNS : 1;
    while (!is_over()) {
        work();
        uint64_t now = pm_os_now_ms(), activity = pm_age_activity();
        if (activity != seen || !since)
            since = now;
        seen = activity;
        if (now - since < QUIET * decay || pm_late_looks()) {
            wait_ms(pause);
        } else {
            sleep_long(seen);
            since = 0;
        }
    }
}

// Commits by time, counted from the end of the last one: a slow medium does not stop the program
// for good. Between them also what decay asks for.
static void run_commits(void) {
    uint64_t interval = pm_commits_interval(), decay = pm_options.decay_ms.number / TURNS + 1;
    uint64_t next = pm_os_now_ms() + interval, look = 0, now;
    while (!is_over()) {
        now = pm_os_now_ms();
        uint64_t pause = look > now ? look - now : 1;
        if (interval)
            pause = next <= now ? 1 : next - now < pause ? next - now : pause;
        wait_ms(decays() && decay < pause ? decay : pause);
        if (!is_over() && interval && pm_os_now_ms() >= next) {
            uint64_t again = interval < AGAIN_MS ? interval : AGAIN_MS;
            next = pm_commits_by_time() ? interval : again;
            next += pm_os_now_ms();
        }
        if (!is_over() && pm_os_now_ms() >= look) {
            pm_commits_by_bound();
            look = pm_os_now_ms() + pm_commit_bound_pause();
        }
        if (decays())
            work();
    }
}

static void run_idle(void) {
    uint64_t pause = pm_options.decay_ms.number / TURNS + 1, look = 0;
    while (!is_over()) {
        uint32_t seen = pm_idle_seen();
        uint64_t ms = pm_idle_work();
        if (!is_over() && pm_os_now_ms() >= look) {
            pm_commits_by_bound();
            look = pm_os_now_ms() + pm_commit_bound_pause();
        }
        if (ms > pm_commit_bound_pause())
            ms = pm_commit_bound_pause();
        if (decays())
            work();
        bool busy = pm_beside_is_on() || pm_late_looks();
        if (busy)
            wait_ms(1);
        if (!is_over())
            pm_idle_sleep(seen, busy ? 0 : decays() && pause < ms ? pause : ms);
    }
}

static void run_late(void) {
    while (!is_over() && pm_late_looks())
        wait_ms(LATE_MS);
    while (!is_over())
        pm_futex_wait(&quit, 0);
}

static void run(void) {
    be_own_thread();
    if (!pm_commit_bound_wanted() && !decays())
        run_late();
    else if (!pm_commit_bound_wanted())
        run_decay();
    else if (pm_commits_mode() == PM_COMMITS_IDLE)
        run_idle();
    else
        run_commits();
    pm_signal_stack_drop();
}

// ---- start and stop -----------------------------------------------------------------------------

static struct pm_thread_memory memory;

static bool make_memory(void) {
    const void *used[] = {&pm_tcache,     &pm_persist_mine,     &pm_calls_own,
                          &pm_locks_held, &pm_signal_stack_own, &pm_cancel_asynchronous};
    return pm_thread_memory(&memory, STACK_BYTES, used, sizeof used / sizeof *used);
}

void pm_background_start(void) {
    int saved = errno;
    bool commits = pm_commit_bound_wanted();
    if (!(commits || decays() || pm_late_looks()) ||
        atomic_load_explicit(&pm_os_own_thread, memory_order_acquire))
        return;
    if (commits || pm_late_looks())
        pm_looker_start(pm_proc_root());
    atomic_store_explicit(&quit, 0, memory_order_relaxed);
    atomic_store_explicit(&begun, 0, memory_order_relaxed);
    long id = make_memory()
                  ? pm_bare_thread(run, memory.stack_top, memory.pointer, &pm_os_own_thread)
                  : -ENOMEM;
    if (id < 0)
        pm_looker_stop();
    if (id < 0 && commits)
        pm_event(PM_EV_NO_THREAD,
                 "PMALLOC_COMMIT: no thread can be made (%s; see `ulimit -u`); there are commits "
                 "only where the program asks for them, and at its end",
                 pm_strerror((int)-id));
    else if (id < 0 && decays())
        pm_event(
            PM_EV_NO_THREAD,
            "PMALLOC_BACKGROUND=decay: no thread can be made (%s; see `ulimit -u`); free memory "
            "goes back only while the program asks for memory",
            pm_strerror((int)-id));
    if (id < 0 && pm_late_looks())
        pm_event(PM_EV_NO_THREAD,
                 "PMALLOC_ROOTS: no thread can be made (%s; see `ulimit -u`); late roots wait for "
                 "pmalloc_restore()",
                 pm_strerror((int)-id));
    if (id < 0 && pm_beside_is_on()) {
        pm_event(
            PM_EV_NO_THREAD,
            "PMALLOC_COLLECT=background: no thread can be made (%s; see `ulimit -u`); all that "
            "was allocated is kept, as under later",
            pm_strerror((int)-id));
        pm_beside_stop();
    }
    while (id > 0 && !atomic_load_explicit(&begun, memory_order_acquire))
        pm_futex_wait(&begun, 0);
    errno = saved;
}

bool pm_background_stop(void) {
    uint32_t id = atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    if (!id)
        return true;
    const struct timespec look = {0, 10000000};
    // A commit that it makes now is awaited: the one at the end of the program comes after it. Only
    // its rounds are cut short: what they have is in the next commit.
    uint64_t until = pm_heap_is_journaled() ? UINT64_MAX : pm_os_now_ms() + STOP_MS;
    uint32_t seen;
    int saved = errno;
    pm_release_for_program(); // its commit may wait until the program's threads may go on
    atomic_store_explicit(&quit, 1, memory_order_release);
    pm_commit_rounds_stop(true);
    pm_futex_wake(&quit, 1);
    // Not FUTEX_WAIT_PRIVATE, because the kernel's wake-up at the end of a thread is not private.
    while ((seen = atomic_load_explicit(&pm_os_own_thread, memory_order_acquire)) &&
           pm_os_now_ms() < until) {
        pm_age_wake();
        pm_idle_wake();
        pm_outbox_wake();
        syscall(SYS_futex, &pm_os_own_thread, FUTEX_WAIT, seen, &look, NULL, 0L);
    }
    pm_commit_rounds_stop(false);
    if (!seen)
        pm_bare_thread_leave(id);
    errno = saved;
    return !seen;
}

bool pm_background_runs(void) {
    return atomic_load_explicit(&pm_os_own_thread, memory_order_acquire) != 0;
}

bool pm_background_pause(void) {
    bool paused = pm_background_runs() && pm_background_stop();
    if (paused)
        pm_looker_stop();
    return paused;
}

void pm_background_go_on(bool paused) {
    if (paused)
        pm_background_start();
}

void pm_background_forked(void) {
    pm_looker_forked();
    atomic_store_explicit(&pm_os_own_thread, 0, memory_order_relaxed);
    atomic_store_explicit(&pm_age_asleep, 0, memory_order_relaxed);
    pm_commit_rounds_stop(false);
    pm_idle_forked();
    pm_outbox_forked();
    pm_sections_forked();
    pm_beside_forked();
}

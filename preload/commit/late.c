// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "late.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "base/cancel.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "base/signal_stack.h"
#include "commits.h"
#include "media/heap.h"
#include "roots/parts.h"
#include "roots/root_table.h"
#include "state/phase.h"
#include "state/replaced.h"
#include "threads/hold.h"
#include "threads/tasks.h"

#define PATIENCE_MS 1000
#define TRIES 20    // where a thread is on its way into its call
#define SAY_MS 5000 // a program that was not idle by then is told
#define LATER_MS 10 // and looked at this often from then on
#define TRY_US 500  // between two tries

bool pm_late_awaited;

static enum pm_root_when when;
static _Atomic uint32_t waiting; // threads in a wait
static _Atomic bool looking;     // one thread at a time
static _Atomic uint64_t next;    // no look before this, in milliseconds
static _Atomic bool said;
static uint64_t begun;

int pm_late_begin(struct pm_error *err) {
    when = pm_parts_when();
    if (!when || pm_hold_prepare())
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "no memory to hold threads with, which late roots need");
}

void pm_late_start(void) {
    begun = pm_os_now_ms();
    pm_late_awaited = when != PM_ROOT_AT_START;
}

// ---- the moment ---------------------------------------------------------------------------------

struct moment {
    bool idle; // only if each thread waits
    int error;
};

// With the commit lock: no commit and no fork has its instant meanwhile.
static int restore(bool idle) {
    static struct pm_error err;
    if (!pm_hold_all(PATIENCE_MS))
        return EAGAIN;
    bool now = !idle || pm_hold_all_wait();
    int status = now ? pm_roots_capture_late(&err) : PM_OK;
    if (now)
        pm_late_awaited = false;
    pm_release_all();
    if (status != PM_OK)
        pm_refuse("%s; the roots that were to be restored late are in the heap as they were",
                  err.text);
    return now ? 0 : EBUSY;
}

static void take_moment(void *arg) {
    struct moment *moment = arg;
    moment->error = EBUSY;
    if (!pm_trylock_raw(&pm_commit_lock))
        return;
    if (pm_late_awaited)
        moment->error = restore(moment->idle);
    pm_unlock_raw(&pm_commit_lock);
}

static void tell(void) {
    // Children that skip the fork handlers find none of the captured pages.
    if (pm_heap_on_media() && !pm_heap_is_journaled())
        pm_roots_fork_exclude(true);
    if (pm_heap_on_media() && !pm_heap.created)
        pm_replaced_note();
    if (pm_options.verbose.number)
        pm_say("heap %.300s: the late roots are restored, %.3f s after the start", pm_heap.dir,
               (double)(pm_os_now_ms() - begun) / 1000);
}

static int try_once(bool idle) {
    struct moment moment = {idle, 0};
    struct pm_cancel cancel = pm_cancel_hold();
    pm_signal_stack_run(take_moment, &moment);
    pm_cancel_release(cancel);
    if (!moment.error)
        tell();
    return moment.error;
}

// ---- a program that waits -----------------------------------------------------------------------

static void count_living(pid_t id, void *arg) { *(uint32_t *)arg += !pm_task_is_dead(id); }

// Each thread is counted before it looks: the last one finds all of them.
static bool seems_idle(void) {
    uint32_t others = 0;
    return pm_tasks_each_other(count_living, &others) && atomic_load(&waiting) > others;
}

static void say_busy(void) {
    if (!atomic_exchange(&said, true))
        pm_say("heap %.300s: its late roots wait, because the program was never idle in the %d s "
               "since its start; nothing in the heap has changed. A thread that waits in a call "
               "which is not known (a futex of its own, pthread_join) counts as busy: then "
               "name the roots SPEC@call, and call pmalloc_restore()",
               pm_heap.dir, SAY_MS / 1000);
}

// A thread that was counted may not be in its call yet.
static void look(void) {
    const struct timespec pause = {0, TRY_US * 1000};
    for (unsigned i = 0; i < TRIES && pm_late_awaited && seems_idle(); i++) {
        if (try_once(true) == 0)
            return;
        nanosleep(&pause, NULL);
    }
    uint64_t now = pm_os_now_ms();
    if (pm_late_awaited && now - begun >= SAY_MS) {
        say_busy();
        atomic_store(&next, now + LATER_MS);
    }
}

void pm_late_enter(bool may) {
    atomic_fetch_add(&waiting, 1);
    if (!may || when != PM_ROOT_AT_IDLE || pm_os_now_ms() < atomic_load(&next) ||
        atomic_exchange(&looking, true))
        return;
    look();
    atomic_store(&looking, false);
}

void pm_late_leave(void) { atomic_fetch_sub(&waiting, 1); }

// ---- other moments ------------------------------------------------------------------------------

int pm_late_call(void) {
    const struct timespec pause = {0, TRY_US * 1000};
    int error = ENOENT;
    for (unsigned i = 0; i < PATIENCE_MS * 1000 / TRY_US && pm_late_awaited; i++) {
        error = try_once(false);
        if (error != EBUSY)
            break;
        nanosleep(&pause, NULL);
    }
    return error;
}

void pm_late_never(void) { pm_late_awaited = false; }

void pm_late_forked(void) {
    atomic_store(&waiting, 0);
    atomic_store(&looking, false);
}

void pm_late_end(void) {
    if (pm_late_awaited && pm_heap_on_media() && pm_heap_has_roots() &&
        !atomic_exchange(&said, true))
        pm_say("heap %.300s: its late roots were not restored: %s; they are as the last run left "
               "them",
               pm_heap.dir,
               when == PM_ROOT_AT_CALL ? "the program has not called pmalloc_restore()"
                                       : "the program was never idle");
}

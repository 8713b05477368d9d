// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "late.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/os.h"
#include "base/signal_stack.h"
#include "media/heap.h"
#include "own_pipes.h"
#include "roots/parts.h"
#include "roots/root_table.h"
#include "state/phase.h"
#include "state/replaced.h"
#include "threads/calls.h"
#include "threads/hold.h"
#include "threads/tasks.h"

#define PATIENCE_MS 1000
#define GATE_MS 3000   // in which a thread stays before its wait,
#define GATE_LOOKS 300 // and PMAlloc's own thread has had the processor for so many looks;
#define GATE_MOST_MS 60000
#define GATE_STEP_MS 10
#define SAY_MS 5000 // a program that was not idle by then is told
#define LOOK_US 300 // between two looks until then
#define LATER_US 10000
#define RARELY_MS 3000
#define TRY_US 500

bool pm_late_awaited;

static enum pm_root_when when;
static _Atomic uint32_t moments; // a futex: grows when threads need not stay any more
static _Atomic uint32_t looks;   // that PMAlloc's own thread has made
static _Atomic bool said;
static uint64_t begun;

int pm_late_begin(struct pm_error *err) {
    when = pm_parts_when();
    if (!when || pm_hold_prepare())
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: no memory to hold threads with, which late roots need; see `ulimit -v` "
                   "and `ulimit -d`",
                   pm_heap.dir);
}

void pm_late_start(void) {
    begun = pm_os_now_ms();
    pm_late_awaited = when != PM_ROOT_AT_START;
}

// ---- the moment ---------------------------------------------------------------------------------

struct idle {
    bool all;    // each thread sleeps in a call that waits
    bool others; // and one of them waits for others: not for a thread of this process, or a time
};

// While threads are held. One that comes from its wait, or was woken there, has work to do. It
// sleeps then, too, until they are released, and says before that it rests: so its state is read
// first.
static void look_at(pid_t id, void *arg) {
    struct idle *idle = arg;
    bool gone;
    if (!idle->all)
        return;
    bool sleeps = pm_task_state(id, &gone) == 'S';
    const struct pm_call_record *record = pm_calls_of(id);
    const struct pm_call *call = atomic_load(&record->call);
    if (sleeps && pm_calls_waits(id) && !atomic_load(&record->resting))
        idle->others |= !call->by_futex && !call->naps;
    else
        idle->all = pm_task_is_dead(id);
}

static bool is_idle(void) {
    struct idle idle = {.all = true};
    return pm_tasks_each_other(look_at, &idle) && idle.all && idle.others;
}

// A thread that sleeps though the process has told itself something waits for what its set-up
// needs. For ever: those are no news, but what it keeps in a pipe, such as tokens.
static bool has_told_itself(void) {
    return pm_os_now_ms() - begun < SAY_MS && pm_own_pipes_have_news();
}

// With the commit lock: no commit and no fork has its instant meanwhile.
static int restore(bool if_idle) {
    static struct pm_error err;
    if (!pm_hold_all(PATIENCE_MS))
        return EAGAIN;
    bool now = !if_idle || (is_idle() && !has_told_itself());
    int status = now ? pm_roots_capture_late(&err) : PM_OK;
    if (now)
        pm_late_awaited = false;
    pm_release_all();
    if (status != PM_OK)
        pm_refuse(pm_event_of(&err),
                  "%s; the roots that were to be restored late are in the heap as they were",
                  err.text);
    return now ? 0 : EBUSY;
}

// Children that skip the fork handlers find none of the captured pages.
static void after(void) {
    if (pm_heap_on_media() && !pm_heap_is_journaled())
        pm_roots_fork_exclude(true);
    if (pm_heap_on_media() && !pm_heap.created)
        pm_replaced_note();
    if (pm_options.verbose.number)
        pm_event(PM_EV_LATE_ROOTS_RESTORED,
                 "heap %.300s: the late roots are restored, %.3f s after the start", pm_heap.dir,
                 (double)(pm_os_now_ms() - begun) / 1000);
}

static void let_go(void) {
    atomic_fetch_add(&moments, 1);
    pm_futex_wake(&moments, 1 << 30);
}

static int try_once(bool if_idle) {
    int error = EBUSY;
    if (!pm_trylock_raw(&pm_commit_lock))
        return error;
    if (pm_late_awaited)
        error = restore(if_idle);
    if (!error)
        after();
    pm_unlock_raw(&pm_commit_lock);
    if (!error)
        let_go();
    return error;
}

// ---- PMAlloc's own thread -----------------------------------------------------------------------

bool pm_late_looks(void) { return pm_late_awaited && when == PM_ROOT_AT_IDLE; }

static void find_awake(pid_t id, void *arg) {
    bool gone;
    *(bool *)arg |= !atomic_load(&pm_calls_of(id)->call) || pm_task_state(id, &gone) != 'S';
}

// Without a hold, so that a program that works is not disturbed.
static bool seems_idle(void) {
    bool awake = false;
    return pm_tasks_each_other(find_awake, &awake) && !awake;
}

static void say_busy(void) {
    if (!atomic_exchange(&said, true))
        pm_event(PM_EV_LATE_ROOTS_WAIT,
                 "heap %.300s: its late roots wait, because the program was never idle in the %d s "
                 "since its start; nothing in the heap has changed. A thread that sleeps in a call "
                 "which is not known, such as a futex of its own, counts as busy: then name the "
                 "roots SPEC@call, and call pmalloc_restore()",
                 pm_heap.dir, SAY_MS / 1000);
}

// Where there is no looker (base/looker.h), a look opens files of /proc with the program's lowest
// free numbers. A program that closes its standard input while it sets itself up, and opens another
// file in its place, must get that number. So nobody looks while the first thread is outside of a
// wait, or only now and then, since it may have ended.
static bool is_worth_it(uint64_t now) {
    static uint64_t last; // of PMAlloc's own thread
    last = last > begun ? last : begun;
    if (!pm_calls_waits((pid_t)pm_calls_process) && now - last < RARELY_MS)
        return false;
    last = now;
    return true;
}

uint64_t pm_late_look(void) {
    atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
    if (is_worth_it(pm_os_now_ms()) && seems_idle() && try_once(true) == 0)
        return LATER_US;
    if (pm_os_now_ms() - begun < SAY_MS)
        return LOOK_US;
    say_busy();
    return LATER_US;
}

// ---- a thread that waits for others -------------------------------------------------------------

// What the process has told itself is a part of its set-up: no work for others, and what it does
// then may be to empty what it has.
static bool works_for_itself(void) {
    struct pm_cancel cancel = pm_cancel_hold();
    bool news = pm_own_pipes_have_news();
    pm_cancel_release(cancel);
    return news;
}

// How long a thread has stayed before its waits, and how often PMAlloc's own thread has looked
// meanwhile.
struct gate {
    uint64_t ms;
    uint32_t looks;
};

// A server may take long to set itself up, and wait for something in between. So for the first
// thread, which does that, only what it stays adds up. For others the time begins at the start: of
// these there may be one for each client, and none should stay if the program is never idle.
static struct gate *gate_of_thread(struct gate *of_others) {
    static struct gate first; // of the first thread, which alone uses it
    if (pm_calls_self() == (pid_t)pm_calls_process)
        return &first;
    *of_others = (struct gate){pm_os_now_ms() - begun, atomic_load(&looks)};
    return of_others;
}

// How long the thread is to stay, in milliseconds. Where nobody has found a processor to look for
// the moment, a program that goes on would answer from what main has set up.
static uint64_t gate_left(const struct gate *gate) {
    if (gate->ms < GATE_MS)
        return GATE_MS - gate->ms;
    bool looked = gate->looks >= GATE_LOOKS;
    return looked || gate->ms >= GATE_MOST_MS || !atomic_load(&pm_os_own_thread) ? 0 : GATE_STEP_MS;
}

// Stays for that long at most, and adds to the gate how long it was. False: an error.
static bool stay_for(struct gate *gate, uint32_t moment, uint64_t left) {
    uint64_t since = pm_os_now_ms();
    uint32_t seen = atomic_load(&looks);
    bool stays = pm_futex_wait_us(&moments, moment, left * 1000) == 0 || errno == EINTR ||
                 errno == ETIMEDOUT;
    gate->ms += pm_os_now_ms() - since;
    gate->looks += atomic_load(&looks) - seen;
    return stays;
}

// What has come for it already is read when the roots are restored.
void pm_late_enter(const struct pm_call *call) {
    if (when != PM_ROOT_AT_IDLE || call->by_futex || call->naps)
        return;
    struct gate of_others, *gate = gate_of_thread(&of_others);
    uint64_t left = gate_left(gate);
    if (!left || works_for_itself())
        return;
    struct pm_call stay = {.kind = PM_CALL_WAITS};
    uint32_t moment = atomic_load(&moments);
    pm_call_enter(&stay);
    while (pm_late_awaited && left && stay_for(gate, moment, left))
        left = gate_left(gate);
    pm_call_leave(&stay);
}

// ---- other moments ------------------------------------------------------------------------------

static void try_now(void *error) { *(int *)error = try_once(false); }

int pm_late_call(void) {
    const struct timespec pause = {0, TRY_US * 1000};
    int error = ENOENT;
    struct pm_cancel cancel = pm_cancel_hold();
    for (unsigned i = 0; i < PATIENCE_MS * 1000 / TRY_US && pm_late_awaited; i++) {
        pm_signal_stack_run(try_now, &error);
        if (error != EBUSY)
            break;
        nanosleep(&pause, NULL);
    }
    pm_cancel_release(cancel);
    return error;
}

void pm_late_never(void) { pm_late_awaited = false; }

void pm_late_end(void) {
    if (pm_late_awaited && pm_heap_on_media() && pm_heap_has_roots() &&
        !atomic_exchange(&said, true))
        pm_event(PM_EV_LATE_ROOTS_LEFT,
                 "heap %.300s: its late roots were not restored: %s; they are as the last run left "
                 "them",
                 pm_heap.dir,
                 when == PM_ROOT_AT_CALL ? "the program has not called pmalloc_restore()"
                                         : "the program was never idle");
}

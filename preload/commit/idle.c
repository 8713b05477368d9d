// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "idle.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/lock.h"
#include "base/os.h"
#include "commits.h"
#include "threads/tasks.h"

#define BUSY_MS 1000     // how long a program may be busy without a commit
#define AGAIN_MS 1       // until the next look
#define AGAIN_MOST_MS 16 // the same, where the program was not idle after all many times
#define LOOK_MS 100      // a thread that ends tells nobody
#define FAILED_MS 1000   // until the next try
#define SOON_MS 5        // in which a program changes little: its first store to a page is a fault
#define FRESH_MS 100     // what rounds have left is still little
#define AWAIT_MS 1000    // for an instant
#define FOREVER_MS 60000 // nothing is due: somebody will wake us

static _Atomic uint32_t waiting; // threads in a wait
static _Atomic uint32_t entries; // waits so far
static _Atomic uint32_t threads; // of the program, when they were last counted
static _Atomic uint32_t bell;    // a futex, for the thread pmalloc-commit
static _Atomic uint32_t asleep;  // an enum below
// The thread that waits last waits for the instant of this number; 0: for none. So that is over
// with the instant, and not with its commit.
static _Atomic uint64_t overdue;
static _Atomic uint32_t tries; // for an instant that came to nothing, as not all were in a wait

enum {
    AWAKE,
    FOR_IDLE, // that thread wants to know when the program is idle
    FOR_ANY,  // there has been no wait since the last commit; it wants to know of the next
};

// Of the thread pmalloc-commit.
static uint32_t committed; // entries when the last commit began
static uint64_t next;      // no commit before this, in milliseconds
static uint64_t busy_since;
static uint64_t again = AGAIN_MS;
static uint64_t instant;          // the last commit's, in milliseconds
static uint64_t fresh_until;      // no rounds before this
static uint64_t fresh = FRESH_MS; // for so long after the next ones
static bool missed;               // an instant since they were made
static bool ahead;                // they were made, and no instant was tried since

static void ring(void) {
    atomic_fetch_add(&bell, 1);
    pm_futex_wake(&bell, 1);
}

static bool is_overdue(void) { return atomic_load(&overdue) == pm_commits_instants() + 1; }

// Before a call that waits, for a program that finds work at each of its waits: here it is at rest
// until it is held, and no handler of its runs. The commit goes on without it. For one try: a
// thread that was cancelled in a wait is counted as if it waited for ever.
static void await_instant(void) {
    uint32_t tried = atomic_load(&tries);
    uint64_t until = pm_os_now_ms() + AWAIT_MS;
    struct pm_cancel cancel = pm_cancel_hold();
    ring();
    while (is_overdue() && atomic_load(&tries) == tried &&
           atomic_load(&waiting) >= atomic_load(&threads)) {
        pm_commits_await_instant();
        if (pm_os_now_ms() >= until)
            atomic_store(&overdue, 0); // that thread has ended, or gets no processor
    }
    pm_cancel_release(cancel);
}

// Sequentially consistent, as in pm_idle_work(): either this thread sees that the other one sleeps,
// or that one sees this wait.
void pm_idle_enter(bool may_commit) {
    uint32_t now = atomic_fetch_add(&waiting, 1) + 1;
    atomic_fetch_add(&entries, 1);
    uint32_t state = atomic_load(&asleep);
    bool all = now >= atomic_load(&threads);
    if (all && may_commit && atomic_load_explicit(&overdue, memory_order_relaxed) && is_overdue())
        await_instant();
    if ((state == FOR_ANY || (state == FOR_IDLE && all)) && atomic_exchange(&asleep, AWAKE))
        ring();
}

void pm_idle_leave(void) { atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed); }

uint32_t pm_idle_seen(void) { return atomic_load(&bell); }

void pm_idle_sleep(uint32_t seen, uint64_t ms) {
    pm_futex_wait_us(&bell, seen, ms * 1000);
    atomic_store(&asleep, AWAKE);
}

void pm_idle_wake(void) { ring(); }

void pm_idle_forked(void) {
    atomic_store_explicit(&waiting, 0, memory_order_relaxed);
    atomic_store_explicit(&asleep, AWAKE, memory_order_relaxed);
    atomic_store_explicit(&overdue, 0, memory_order_relaxed);
    atomic_store_explicit(&threads, 1, memory_order_relaxed);
}

static void count(pid_t id, void *arg) {
    (void)id;
    ++*(uint32_t *)arg;
}

static void count_living(pid_t id, void *arg) { *(uint32_t *)arg += !pm_task_is_dead(id); }

// Only if fewer wait than are listed are the dead ones looked for, one by one.
static bool seems_idle(void) {
    uint32_t living = 0;
    if (!pm_tasks_each_other(count, &living))
        return false;
    if (atomic_load(&waiting) < living) {
        living = 0;
        if (!pm_tasks_each_other(count_living, &living))
            return false;
    }
    atomic_store(&threads, living);
    return atomic_load(&waiting) >= living;
}

// What has changed is looked at while the program waits or works, and nobody waits for it, so that
// the instant copies what was stored to since. Then an instant is tried, whenever that may be: a
// program whose turns are long changes much in each. Rarer and rarer, where instants are missed:
// each time the journal gets what has changed. False: there is little, or that was done.
static bool look_ahead(uint64_t now) {
    if (ahead || now < fresh_until || now - instant < SOON_MS)
        return false;
    bool due = is_overdue();
    atomic_store(&overdue, 0);
    bool some = pm_commits_look_ahead();
    if (due)
        atomic_store(&overdue, pm_commits_instants() + 1);
    if (some) {
        fresh = missed ? 2 * fresh : fresh;
        missed = false;
        ahead = true;
        fresh_until = pm_os_now_ms() + fresh;
    }
    return some;
}

static uint64_t not_idle(uint64_t now) {
    uint64_t patience = pm_commits_interval() > BUSY_MS ? pm_commits_interval() : BUSY_MS;
    if (!busy_since)
        busy_since = now;
    if (now - busy_since >= patience) {
        atomic_store(&overdue, pm_commits_instants() + 1);
        busy_since = 0;
    }
    return LOOK_MS;
}

static uint64_t commit(uint64_t now) {
    uint32_t before = atomic_load(&entries);
    int error = pm_commits_idle();
    ahead = false;
    if (error == EBUSY) {
        missed = true;
        atomic_fetch_add(&tries, 1);
        not_idle(now);
        again = again < AGAIN_MOST_MS ? again * 2 : again;
        return again;
    }
    again = AGAIN_MS;
    busy_since = fresh_until = 0;
    fresh = FRESH_MS;
    missed = false;
    instant = now;
    atomic_store(&overdue, 0);
    next = pm_os_now_ms() + (error ? FAILED_MS : 0);
    if (next < now + pm_commits_interval())
        next = now + pm_commits_interval();
    committed = error ? committed : before;
    return AGAIN_MS;
}

uint64_t pm_idle_work(void) {
    uint64_t now = pm_os_now_ms();
    if (now < next)
        return next - now;
    atomic_store(&asleep, FOR_ANY);
    if (atomic_load(&entries) == committed)
        return FOREVER_MS;
    atomic_store(&asleep, FOR_IDLE);
    if (!seems_idle())
        return not_idle(now);
    atomic_store(&asleep, AWAKE);
    if (look_ahead(now))
        return 0; // the program may not be idle any more
    return commit(now);
}

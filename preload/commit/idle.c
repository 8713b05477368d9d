// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "idle.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/os.h"
#include "commits.h"
#include "threads/tasks.h"

#define BUSY_MS 1000     // how long a program may be busy without a commit
#define AGAIN_MS 1       // until the next look
#define AGAIN_MOST_MS 16 // the same, where the program was not idle after all many times
#define LOOK_MS 100      // a thread that ends tells nobody
#define FAILED_MS 1000   // until the next try
#define FOREVER_MS 60000 // nothing is due: somebody will wake us

static _Atomic uint32_t waiting; // threads in a wait
static _Atomic uint32_t entries; // waits so far
static _Atomic uint32_t threads; // of the program, when they were last counted
static _Atomic uint32_t bell;    // a futex, for the thread pmalloc-commit
static _Atomic uint32_t asleep;  // an enum below
static _Atomic bool overdue;     // the thread that waits last makes the commit

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

static void ring(void) {
    atomic_fetch_add(&bell, 1);
    pm_futex_wake(&bell, 1);
}

// Sequentially consistent, as in pm_idle_work(): either this thread sees that the other one sleeps,
// or that one sees this wait.
void pm_idle_enter(bool may_commit) {
    uint32_t now = atomic_fetch_add(&waiting, 1) + 1;
    atomic_fetch_add(&entries, 1);
    uint32_t state = atomic_load(&asleep);
    bool all = now >= atomic_load(&threads);
    if (all && may_commit && atomic_load_explicit(&overdue, memory_order_relaxed) &&
        pm_commits_idle(true) != EBUSY)
        atomic_store(&overdue, false);
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
    atomic_store_explicit(&overdue, false, memory_order_relaxed);
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

static uint64_t not_idle(uint64_t now) {
    uint64_t patience = pm_commits_interval() > BUSY_MS ? pm_commits_interval() : BUSY_MS;
    if (!busy_since)
        busy_since = now;
    if (now - busy_since >= patience) {
        atomic_store(&overdue, true);
        busy_since = 0;
    }
    return LOOK_MS;
}

static uint64_t commit(uint64_t now) {
    uint32_t before = atomic_load(&entries);
    int error = pm_commits_idle(false);
    if (error == EBUSY) {
        not_idle(now);
        again = again < AGAIN_MOST_MS ? again * 2 : again;
        return again;
    }
    again = AGAIN_MS;
    busy_since = 0;
    atomic_store(&overdue, false);
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
    return commit(now);
}

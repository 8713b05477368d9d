// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commits.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/options.h"
#include "base/threads.h"
#include "blocks/age.h"
#include "commit_cost.h"
#include "hold.h"
#include "kernel_stores.h"
#include "media/commit.h"
#include "media/heap.h"
#include "media/heap_open.h"
#include "phase.h"
#include "roots/root_table.h"

// ---- settings -----------------------------------------------------------------------------------

static uint64_t interval_ms;

#define INTERVAL_MAX ((uint64_t)24 * 3600 * 1000)

// 10ms, 5s, 2m, 1h. 0: it is none of these.
static uint64_t parse_time(const char *text) {
    static const struct {
        const char *name;
        uint64_t ms;
    } unit[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    char *end;
    if (*text < '0' || *text > '9')
        return 0;
    uint64_t value = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++)
        if (strcmp(end, unit[i].name) == 0 && value <= INTERVAL_MAX / unit[i].ms)
            return value * unit[i].ms;
    return 0;
}

bool pm_commits_wanted(void) { return pm_options.commit.text[0] != '\0'; }

uint64_t pm_commits_interval(void) { return interval_ms; }

int pm_commits_options(struct pm_error *err) {
    const char *text = pm_options.commit.text;
    if (!*text || strcmp(text, "api") == 0)
        return PM_OK;
    interval_ms = parse_time(text);
    if (interval_ms)
        return PM_OK;
    return pm_fail(err, PM_USAGE,
                   "PMALLOC_COMMIT=%.100s: not a valid value; use api, or a time such as 100ms, "
                   "5s, 2m or 1h (at most 24h)",
                   text);
}

int pm_commits_begin(struct pm_error *err) {
    if (!pm_hold_prepare())
        return pm_fail(err, PM_OPERATIONAL, "PMALLOC_COMMIT: no memory to hold threads with");
    return pm_heap_journal(err);
}

// ---- one commit ---------------------------------------------------------------------------------

#define PATIENCE_MS                                                                                \
    1000 // for threads that are in the kernel, without a signal, on behalf of a disk

// Blocks all signals, libc's internal ones too: no handler may come between.
static uint64_t block_signals(void) {
    uint64_t all = ~0ull, before = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    return before;
}

static void restore_signals(uint64_t mask) {
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask);
}

static void lock_extents(void (*step)(struct pm_lock *)) {
    for (unsigned i = 0; i < PM_SHARDS; i++) // all that there may be: a thread may make one
        step(&pm_heap.shard[i].lock);
}

static bool is_data(const void *at) {
    return pm_heap_offset(at) < pm_range || pm_roots_captured(at);
}

static void find_data(void *at, size_t len, void *found) {
    if (len && (is_data(at) || is_data((char *)at + len - 1)))
        *(bool *)found = true;
}

// The kernel may store a sleeping call's result at any moment. A page must not be dropped then.
static bool may_drop(void) {
    bool awaited = false;
    pm_hold_each_memory(find_data, &awaited);
    return !awaited && !pm_kernel_stores();
}

static void take_alone(void) {
    struct pm_commit_cost cost;
    uint64_t since = pm_commit_clock();
    pm_lock(&pm_age_lock);
    lock_extents(pm_lock_raw);
    pm_commit_take(!pm_kernel_stores(), &cost);
    lock_extents(pm_unlock_raw);
    pm_unlock(&pm_age_lock);
    pm_commit_was_held(since, cost.pages);
}

// While the threads are held, none of them has a lock, and none is inside the allocator.
static bool take(void) {
    struct pm_commit_cost cost;
    if (pm_threads_none()) {
        take_alone();
        return true;
    }
    uint64_t since = pm_commit_clock();
    if (!pm_hold_all(PATIENCE_MS))
        return false;
    lock_extents(pm_lock_raw);
    pm_commit_take(may_drop(), &cost);
    lock_extents(pm_unlock_raw);
    pm_release_all();
    pm_commit_was_held(since, cost.pages);
    return true;
}

// With the commit lock.
static int make(void) {
    if (!pm_heap_is_journaled())
        return ENOTSUP;
    uint64_t since = pm_commit_clock();
    if (!pm_commit_prepare())
        return errno;
    if (!take())
        return EAGAIN;
    if (!pm_commit_finish())
        return errno;
    pm_commit_was_made(since);
    return 0;
}

// Waits with the signals open: whoever has the lock may stop this thread.
static uint64_t take_lock(void) {
    const struct timespec pause = {0, 200000};
    for (;;) {
        uint64_t mask = block_signals();
        if (pm_trylock_raw(&pm_commit_lock))
            return mask;
        restore_signals(mask);
        syscall(SYS_nanosleep, &pause, NULL);
    }
}

int pm_commits_make(void) {
    int saved = errno;
    if (!pm_heap_is_journaled())
        return ENOTSUP;
    if (pm_nested())
        return EDEADLK;
    struct pm_cancel cancel = pm_cancel_hold();
    uint64_t mask = take_lock();
    int error = make();
    restore_signals(mask);
    pm_unlock_raw(&pm_commit_lock);
    pm_cancel_release(cancel);
    errno = saved;
    return error;
}

static void say_failed(int error) {
    pm_say("PMALLOC_COMMIT: a commit has failed: %s; the program goes on, %s stays as of the last "
           "commit, and later ones try again",
           error == EAGAIN ? "a thread does not stop" : pm_strerror(error), pm_heap.dir);
}

void pm_commits_by_time(void) {
    static bool failing;
    if (!pm_trylock_raw(&pm_commit_lock))
        return;
    int error = make();
    pm_unlock_raw(&pm_commit_lock);
    bool fails = error && error != ENOTSUP;
    if (fails && !failing)
        say_failed(error);
    failing = fails;
}

// ---- the end of the program ---------------------------------------------------------------------

bool pm_commits_end(void) {
    struct pm_commit_cost cost;
    bool good = pm_commit_prepare();
    if (good) {
        pm_commit_take(false, &cost);
        good = pm_commit_finish() && pm_commit_prepare();
    }
    if (!good)
        say_failed(errno);
    return good;
}

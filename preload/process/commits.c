// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commits.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/options.h"
#include "base/threads.h"
#include "blocks/age.h"
#include "commit_bound.h"
#include "hold.h"
#include "kernel_stores.h"
#include "media/commit.h"
#include "media/heap.h"
#include "media/heap_open.h"
#include "media/volume.h"
#include "media/work_copy.h"
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

// The directory of the commits takes the place of PMALLOC_HEAP. A heap that lies there already
// would be passed over, with what it holds.
static int use_commit_dir(struct pm_error *err) {
    const char *dir = pm_options.commit_dir.text, *heap = pm_options.heap.text;
    char path[PATH_MAX];
    if (!*dir)
        return PM_OK;
    if (!pm_commits_wanted())
        return pm_fail(err, PM_USAGE,
                       "PMALLOC_COMMIT_DIR=%.200s: there are no commits; set PMALLOC_COMMIT, too",
                       dir);
    snprintf(path, sizeof path, "%.*s/%s", (int)pm_volume_first(heap), heap,
             pm_heap.super_file.name);
    if (*heap && strcmp(dir, heap) != 0 && access(path, F_OK) == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "PMALLOC_HEAP=%.200s holds a heap, but with PMALLOC_COMMIT_DIR the heap is "
                       "%.200s: run `pmalloc-backup %.200s %.200s` and remove the first, or unset "
                       "one of the two settings",
                       heap, dir, heap, dir);
    pm_options.heap.text = dir;
    pm_work_wanted = true;
    return PM_OK;
}

int pm_commits_options(struct pm_error *err) {
    const char *text = pm_options.commit.text;
    if (use_commit_dir(err) != PM_OK)
        return err->status;
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
    pm_lock(&pm_age_lock);
    lock_extents(pm_lock_raw);
    pm_commit_take(!pm_kernel_stores(), &cost);
    lock_extents(pm_unlock_raw);
    pm_unlock(&pm_age_lock);
}

// While the threads are held, none of them has a lock, and none is inside the allocator.
static bool take(void) {
    struct pm_commit_cost cost;
    if (pm_threads_none()) {
        take_alone();
        return true;
    }
    if (!pm_hold_all(PATIENCE_MS))
        return false;
    lock_extents(pm_lock_raw);
    pm_commit_take(may_drop(), &cost);
    lock_extents(pm_unlock_raw);
    pm_release_all();
    return true;
}

// With the commit lock.
static int make(void) {
    if (!pm_heap_is_journaled())
        return ENOTSUP;
    if (!pm_commit_prepare())
        return errno;
    if (!take())
        return EAGAIN;
    if (!pm_commit_finish())
        return errno;
    pm_commit_cut();
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

// Called by PMAlloc's thread alone.
static void note_failure(int error) {
    static bool failing;
    bool fails = error && error != ENOTSUP;
    if (fails && !failing)
        say_failed(error);
    failing = fails;
}

void pm_commits_by_time(void) {
    if (!pm_trylock_raw(&pm_commit_lock))
        return;
    int error = make();
    pm_unlock_raw(&pm_commit_lock);
    note_failure(error);
}

// Where the program or its calls choose the instant, this one is another: so it is said, once.
static void say_forced(void) {
    static bool said;
    if (!interval_ms && !said)
        pm_say("PMALLOC_COMMIT_PAGES: too many pages have changed, so a commit was made that the "
               "program did not ask for; larger values, or more memory, avoid it");
    said = true;
}

// With the commit lock, which a fork takes, too. The second commit gives back what the first one
// has written, as far as it has not changed since.
static int make_by_bound(bool *due) {
    int error = 0;
    *due = pm_heap_is_journaled() && pm_commit_bound_reached();
    for (unsigned i = 0; i < 2 && *due && !error; i++) {
        pm_commit_force();
        error = make();
    }
    if (*due)
        pm_commit_bound_kept();
    return error;
}

void pm_commits_by_bound(void) {
    bool due;
    if (!pm_trylock_raw(&pm_commit_lock))
        return;
    int error = make_by_bound(&due);
    pm_unlock_raw(&pm_commit_lock);
    if (due)
        note_failure(error);
    if (due && !error)
        say_forced();
}

// ---- the end of the program ---------------------------------------------------------------------

bool pm_commits_end(bool alone) {
    struct pm_commit_cost cost;
    bool good = pm_commit_prepare();
    if (good) {
        pm_commit_take(false, &cost);
        good = pm_commit_finish() && pm_commit_prepare();
    }
    if (!good)
        pm_say("PMALLOC_COMMIT: the commit at the end of the program has failed: %s; %s stays as "
               "of the one before",
               pm_strerror(errno), pm_heap.dir);
    else if (alone)
        pm_commit_cut();
    return good;
}

void pm_commits_no_end(void) {
    pm_say("PMALLOC_COMMIT: there is no commit at the end of the program, because it ends within a "
           "call of the allocator; %s stays as of the one before",
           pm_heap.dir);
}

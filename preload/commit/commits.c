// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commits.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/decay.h"
#include "base/inherited_filter.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/proc.h"
#include "base/signal_stack.h"
#include "commit_bound.h"
#include "commit_cost.h"
#include "commit_rounds.h"
#include "kernel_stores.h"
#include "media/backing/commit_room.h"
#include "media/backing/volume.h"
#include "media/backing/work_copy.h"
#include "media/commit/commit.h"
#include "media/commit/journal_files.h"
#include "media/commit/rounds.h"
#include "media/commit/stored_pages.h"
#include "media/heap.h"
#include "media/journal/checkpoint.h"
#include "media/open/heap_open.h"
#include "roots/root_table.h"
#include "state/phase.h"
#include "state/removed.h"
#include "threads/calls.h"
#include "threads/commit_gate.h"
#include "threads/hold.h"
#include "threads/sections.h"
#include "threads/threads.h"

int pm_commits_begin(bool alone, struct pm_error *err) {
    if (pm_inherited_ends(PM_INHERITED_PROCESS_VM_READV) || pm_inherited_ends(PM_INHERITED_KCMP))
        atomic_store_explicit(&pm_proc_no_detour, true, memory_order_relaxed);
    if (!pm_inherited_ends(PM_INHERITED_STATX))
        atomic_store_explicit(&pm_os_fd_by_statx, true, memory_order_relaxed);
    if (!pm_hold_keep_sight(alone || pm_threads_none()))
        pm_event(PM_EV_PROC_UNSEEN,
                 "PMALLOC_COMMIT: /proc is not to be seen here: each commit compares all of %s; "
                 "threads that the C library makes for itself (timers, getaddrinfo_a) are not held "
                 "at a commit, and a call of the program's may end with EINTR; mount /proc",
                 pm_heap.dir);
    if (!pm_hold_prepare())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_COMMIT: no memory to hold threads with; see `ulimit -d`, "
                       "`ulimit -v` and vm.overcommit_memory, or unset PMALLOC_COMMIT",
                       pm_heap.dir);
    pm_commit_found_room(true, pm_heap.length); // the files have it all
    if (pm_options.commit_patience.number)
        pm_sections_begin();
    pm_rounds_unseen = pm_kernel_stores_now;
    pm_rounds_awaited = pm_commit_rounds_awaited;
    return pm_heap_journal(err);
}

static _Atomic bool stopped; // changes with the commit lock

bool pm_commits_are_stopped(void) { return atomic_load_explicit(&stopped, memory_order_relaxed); }

static bool may_be_made(void) { return pm_heap_is_journaled() && !pm_commits_are_stopped(); }

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

// What the last commit has left copied. To find out whether dropping is allowed takes as long as to
// look at this number of pages again.
#define WORTH_DROPPING 16

static bool worth_dropping(void) {
    return pm_commit_last.copied >= WORTH_DROPPING && pm_checkpoint_is_durable();
}

// The kernel may store a sleeping call's result at any moment. A page must not be dropped then.
static bool may_drop(void) {
    bool awaited = false;
    if (!worth_dropping())
        return false;
    pm_hold_each_memory(find_data, &awaited);
    return !awaited && !pm_kernel_stores_now();
}

// The instants so far, and the last one whose commit is in force.
static _Atomic uint64_t instants, covered;
// Changes at the end of each commit, and of an instant at rest: a futex.
static _Atomic uint32_t ends;
// How many wait for that: nobody is woken where nobody waits.
static _Atomic uint32_t awaiting;

static void wake_awaiting(void) {
    atomic_fetch_add(&ends, 1);
    if (atomic_load(&awaiting))
        pm_futex_wake(&ends, 1 << 30);
}

// Right after the threads go on.
static void were_held(uint64_t since, struct pm_commit_cost *cost) {
    uint64_t held = pm_os_now_ns() - since;
    pm_commit_look(cost);
    pm_commit_was_held(held, cost);
}

static void take_alone(void) {
    struct pm_commit_cost cost;
    uint64_t since = pm_os_now_ns();
    pm_lock(&pm_age_lock);
    lock_extents(pm_lock_raw);
    atomic_fetch_add(&instants, 1);
    pm_kernel_stores_anew();
    pm_commit_take(worth_dropping() && !pm_kernel_stores_now(), &cost);
    lock_extents(pm_unlock_raw);
    pm_unlock(&pm_age_lock);
    were_held(since, &cost);
    pm_commit_passed(&(struct pm_gate_passed){.rung = PM_RUNG_BETWEEN});
}

// While the threads are held, none of them has a lock of ours, and none is inside the allocator. 0,
// EAGAIN: a thread does not stop, EBUSY: `idle`, and a thread is in no wait, or ETIME: `strict`,
// and a thread does not leave its section.
static void take_held(enum pm_rung rung, struct pm_commit_cost *cost) {
    if (rung == PM_RUNG_ANY)
        pm_commit_amid();
    lock_extents(pm_lock_raw);
    atomic_fetch_add(&instants, 1);
    pm_kernel_stores_anew();
    pm_commit_take(may_drop(), cost);
    lock_extents(pm_unlock_raw);
}

// Where all threads wait there is no gate to close.
static int take_idle(void) {
    struct pm_commit_cost cost;
    uint64_t since = pm_os_now_ns();
    if (!pm_hold_all(PATIENCE_MS))
        return EAGAIN;
    bool idle = pm_hold_all_wait();
    if (idle)
        take_held(PM_RUNG_BETWEEN, &cost);
    pm_release_all();
    if (!idle)
        return EBUSY;
    wake_awaiting();
    were_held(since, &cost);
    pm_commit_passed(&(struct pm_gate_passed){.rung = PM_RUNG_BETWEEN});
    return 0;
}

// Which instant a commit gets.
enum instant {
    ANY_AT_LAST, // between operations, or any when patience is over; not that under `strict`
    TRIES,       // between operations; ETIME: who asks can try again
    AT_REST,     // all wait: `idle`
};

static enum pm_gate_wish wish_for(enum instant instant) {
    return pm_commits_are_strict() ? PM_GATE_STRICT
           : instant == TRIES      ? PM_GATE_TRIES
                                   : PM_GATE_PATIENCE;
}

static int take(enum instant instant) {
    struct pm_gate_passed passed;
    struct pm_commit_cost cost;
    if (!pm_threads_some() && pm_threads_none()) {
        take_alone();
        return 0;
    }
    if (instant == AT_REST)
        return take_idle();
    enum pm_gate_result result = pm_gate_hold(PATIENCE_MS, wish_for(instant), &passed);
    if (result != PM_GATE_HELD)
        return result == PM_GATE_INSIDE ? ETIME : EAGAIN;
    take_held(passed.rung, &cost);
    pm_gate_release();
    were_held(passed.held_since, &cost);
    pm_commit_passed(&passed);
    return 0;
}

// Commits go on meanwhile: the journal has them.
static void say_files_fail(void) {
    static bool failing;
    int error = pm_checkpoint_error();
    if (error && !failing)
        pm_event(
            PM_EV_FILES_NOT_WRITTEN,
            "PMALLOC_COMMIT: a file of %s cannot be written back: %s; nothing is lost: commits "
            "go on, and the journal keeps them; it grows until the medium works again",
            pm_heap.dir, pm_strerror(error));
    failing = error != 0;
}

static const char *why_removed; // the files were removed, and cannot be made again

// The copy is of one instant, as a commit.
static int mend_removed(void) {
    static struct pm_error err;
    struct pm_gate_passed passed;
    bool alone = pm_threads_none();
    pm_commit_abandon();
    if (!alone && pm_gate_hold(PATIENCE_MS, PM_GATE_PATIENCE, &passed) != PM_GATE_HELD)
        return EAGAIN;
    if (alone)
        pm_lock(&pm_age_lock);
    lock_extents(pm_lock_raw);
    int status = pm_removed_mend(&err);
    lock_extents(pm_unlock_raw);
    if (alone)
        pm_unlock(&pm_age_lock);
    else
        pm_gate_release();
    why_removed = status == PM_OK ? NULL : err.text;
    return status == PM_OK ? 0 : ENOENT;
}

static int take_and_enforce(enum instant instant, bool rounds) {
    if (!pm_commit_prepare())
        return errno;
    bool others = pm_threads_some() || !pm_threads_none();
    if (rounds && instant != AT_REST && others && pm_commit_rounds_needed() && !pm_commit_rounds())
        return EINPROGRESS;
    int error = take(instant);
    if (error)
        return error;
    return pm_commit_enforce() ? 0 : errno;
}

// There was no instant for it, which is no failure.
static bool comes_later(int error) {
    return error == EAGAIN || error == EBUSY || error == ETIME || error == EINPROGRESS;
}

// With the commit lock. EINPROGRESS: its rounds were cut short (commit_rounds.h): once more, after
// the lock was given up for a while.
static int make(enum instant instant) {
    if (!may_be_made())
        return ENOTSUP;
    uint64_t since = pm_os_now_ns(), length = pm_heap.length;
    int error = pm_removed(true) ? mend_removed() : 0;
    if (!error)
        error = take_and_enforce(instant, true);
    if (pm_commit_again(error)) // rounds take up to twice as much of the journal
        error = take_and_enforce(instant, false);
    if (error && !comes_later(error))
        pm_commit_has_failed();
    if (!error || pm_commit_lacks_room(error))
        pm_commit_found_room(!error, length);
    if (error)
        return error;
    pm_commit_was_made(since);
    atomic_store(&covered, atomic_load(&instants));
    return 0;
}

// What is in force is not in the files yet: an answer did not wait for that.
static _Atomic bool behind;

static void bring(void) {
    atomic_store_explicit(&behind, false, memory_order_relaxed);
    pm_commit_bring();
    pm_commit_cut();
    say_files_fail();
}

static int make_and_bring(enum instant instant) {
    int error = make(instant);
    if (!error)
        bring();
    return error;
}

static int make_first(enum instant instant) {
    int error = make(instant);
    if (!error)
        atomic_store_explicit(&behind, true, memory_order_relaxed);
    return error;
}

static int bring_last(enum instant instant) {
    (void)instant;
    if (may_be_made())
        bring();
    return 0;
}

// Waits for a commit to end, a little, in a call where this thread may be held.
static void await_end(uint32_t seen, enum pm_call_kind kind) {
    atomic_fetch_add(&awaiting, 1);
    pm_calls_wait_us(&ends, seen, 1000, kind);
    atomic_fetch_sub(&awaiting, 1);
}

void pm_commits_await_instant(void) { await_end(atomic_load(&ends), PM_CALL_WAITS); }

void pm_commits_stop(bool on) {
    uint32_t seen = atomic_load(&ends);
    for (; !pm_trylock_raw(&pm_commit_lock); seen = atomic_load(&ends))
        await_end(seen, PM_CALL_OTHER);
    atomic_store_explicit(&stopped, on, memory_order_relaxed);
    pm_unlock_raw(&pm_commit_lock);
}

static void end_commit(void) {
    pm_unlock_raw(&pm_commit_lock);
    wake_awaiting();
}

// Waits with the signals open: whoever has the lock may hold this thread. False: meanwhile a commit
// whose instant is later than `before` is in force.
static bool take_lock(uint64_t before, uint64_t *mask) {
    for (;;) {
        uint32_t seen = atomic_load(&ends);
        if (atomic_load(&covered) > before)
            return false;
        pm_commit_rounds_make_way();
        *mask = block_signals();
        if (pm_trylock_raw(&pm_commit_lock))
            return true;
        restore_signals(*mask);
        await_end(seen, PM_CALL_OTHER);
    }
}

struct turn {
    int (*make)(enum instant instant);
    enum instant instant;
    uint64_t before;
    int error;
};

static void take_turn(void *arg) {
    struct turn *turn = arg;
    for (uint64_t mask; take_lock(turn->before, &mask);) {
        pm_threads_deaf(true);
        turn->error = turn->make(turn->instant);
        pm_threads_deaf(false);
        restore_signals(mask);
        end_commit();
        if (turn->error != EINPROGRESS)
            return;
        pm_commit_rounds_let_pass();
    }
    turn->error = 0; // another thread's commit has it all
}

static int make_in_turn(int (*by)(enum instant instant), enum instant instant, uint64_t before) {
    int saved = errno;
    struct turn turn = {by, instant, before, 0};
    struct pm_cancel cancel = pm_cancel_hold();
    struct pm_call_record *own = pm_calls_own ? pm_calls_own : pm_calls_find_own();
    atomic_store_explicit(&own->answers, true, memory_order_relaxed);
    pm_signal_stack_run(take_turn, &turn);
    atomic_store_explicit(&own->answers, false, memory_order_relaxed);
    pm_cancel_release(cancel);
    errno = saved;
    return turn.error;
}

int pm_commits_make(void) {
    if (!may_be_made())
        return ENOTSUP;
    if (pm_nested())
        return EDEADLK;
    return make_in_turn(make_and_bring, ANY_AT_LAST, UINT64_MAX);
}

const char *pm_commits_reason(int error) {
    if (error == ENOSPC && pm_journal_has_no_room)
        return "No space left on device: its journal is too small for what has changed (see "
               "`pmalloc-recover --make --journal`)";
    if (error == ENOENT && why_removed)
        return why_removed;
    if (error == ETIME)
        return "a thread does not leave its critical section, or calls nothing";
    return error == EAGAIN ? "a thread does not stop" : pm_strerror(error);
}

static void say_failed(int error) {
    pm_event(
        PM_EV_COMMIT_FAILED,
        "PMALLOC_COMMIT: a commit has failed: %s; the program goes on, %s stays as of the last "
        "commit, and later ones try again",
        pm_commits_reason(error), pm_heap.dir);
}

// Says it once for a row of failures. Until it is said no other thread goes on whose commit has
// failed, too: its answer would leave before the line that it is not kept.
static int told(int error) {
    static _Atomic uint32_t state; // a futex
    enum { WELL, SAYING, SAID };
    uint32_t was = SAID;
    if (!error)
        atomic_compare_exchange_strong(&state, &was, WELL);
    if (!error || error == ENOTSUP || error == EBUSY || error == EINPROGRESS)
        return error;
    for (was = WELL; !atomic_compare_exchange_strong(&state, &was, SAYING) && was == SAYING;
         was = WELL)
        pm_futex_wait_us(&state, SAYING, 1000);
    if (was == WELL) {
        say_failed(error);
        atomic_store(&state, SAID);
        pm_futex_wake(&state, 1 << 30);
    }
    return error;
}

uint64_t pm_commits_instants(void) { return atomic_load(&instants); }
uint64_t pm_commits_covered(void) { return atomic_load(&covered); }

// A thread that got no processor in time may get one yet.
#define TRIES_MOST 5

static void cover(uint64_t before, int (*by)(enum instant instant)) {
    int error = EAGAIN;
    for (unsigned i = 0; i < TRIES_MOST && error == EAGAIN && may_be_made(); i++)
        error = make_in_turn(by, ANY_AT_LAST, before);
    if (may_be_made())
        told(error);
}

void pm_commits_cover(uint64_t before) { cover(before, make_and_bring); }
void pm_commits_cover_first(uint64_t before) { cover(before, make_first); }

void pm_commits_bring(void) {
    bool busy = atomic_load_explicit(&pm_commit_lock.word, memory_order_relaxed);
    if (!busy && atomic_load_explicit(&behind, memory_order_relaxed))
        make_in_turn(bring_last, ANY_AT_LAST, UINT64_MAX);
}

static int make_if_free(enum instant instant) {
    int error;
    do {
        if (!pm_trylock_raw(&pm_commit_lock))
            return EBUSY;
        error = make_and_bring(instant);
        end_commit();
    } while (error == EINPROGRESS && pm_commit_rounds_let_pass());
    return error;
}

int pm_commits_idle(void) { return told(make_if_free(AT_REST)); }

bool pm_commits_look_ahead(void) {
    bool some = false, cut = true;
    while (cut && pm_trylock_raw(&pm_commit_lock)) {
        bool worth =
            may_be_made() && pm_commit_rounds_worth() && !pm_removed(true) && pm_commit_prepare();
        cut = worth && !pm_commit_rounds();
        end_commit();
        cut = cut && pm_commit_rounds_let_pass();
        some |= worth;
    }
    return some;
}

// For so long a commit by time tries to be between operations.
#define BETWEEN_MS 1000

// It tries again by itself.
bool pm_commits_by_time(void) {
    static unsigned in_vain;
    static uint64_t since; // when an instant between operations was first tried for in vain
    bool tries =
        pm_commits_mode() == PM_COMMITS_TIME && (!since || pm_os_now_ms() - since < BETWEEN_MS);
    int error = make_if_free(tries ? TRIES : ANY_AT_LAST);
    bool refused = tries && error == ETIME;
    if (!error)
        since = 0;
    else if (refused && !since)
        since = pm_os_now_ms();
    in_vain = error == EAGAIN ? in_vain + 1 : 0;
    if (!refused && (in_vain == 0 || in_vain >= TRIES_MOST))
        told(error);
    return !refused && error != EBUSY && error != EAGAIN && error != EINPROGRESS;
}

// Where the program chooses the instant, or an instant is at rest, this one is another: so it is
// said, once. Under `output` the promise is about what came before, so one more does no harm.
static void say_forced(void) {
    static bool said;
    if ((pm_commits_mode() == PM_COMMITS_API || pm_commits_mode() == PM_COMMITS_IDLE) && !said)
        pm_event(PM_EV_COMMIT_FORCED,
                 "PMALLOC_COMMIT_PAGES: too many pages have changed, so a commit is made that the "
                 "program did not ask for; %s it",
                 pm_commit_bound_of_journal()
                     ? "a larger journal (`pmalloc-recover --make --journal`) avoids"
                     : "larger values, or more memory, avoid");
    said = true;
}

// With the commit lock, which a fork takes, too. The second commit gives back what the first one
// has written, as far as it has not changed since.
static int make_by_bound(void) {
    int error = 0;
    for (unsigned i = 0; i < 2 && !error && may_be_made(); i++) {
        pm_commit_force();
        error = make_and_bring(ANY_AT_LAST);
    }
    pm_commit_bound_kept();
    return error;
}

void pm_commits_by_bound(void) {
    bool due;
    if (!pm_trylock_raw(&pm_commit_lock))
        return;
    due = may_be_made() && pm_commit_bound_reached();
    end_commit();
    if (!due)
        return;
    say_forced(); // first: a kill may come between the commit and a later line
    if (!pm_trylock_raw(&pm_commit_lock))
        return; // another commit is under way
    int error = make_by_bound();
    end_commit();
    told(error);
}

void pm_commits_forked(bool commits) {
    pm_hold_forked(commits);
    if (commits)
        pm_commit_forked();
    else
        pm_stored_end();
}

// ---- the end of the program ---------------------------------------------------------------------

static bool make_last(void) {
    struct pm_commit_cost cost;
    if (!pm_commit_prepare())
        return false;
    pm_kernel_stores_anew();
    pm_commit_take(false, &cost);
    return pm_commit_finish();
}

bool pm_commits_end(bool alone, bool between) {
    errno = ETIME;
    enum pm_rung rung = between ? PM_RUNG_BETWEEN : PM_RUNG_ANY;
    if (between || !pm_commits_are_strict())
        pm_commit_passed(&(struct pm_gate_passed){.rung = rung});
    bool good = (between || !pm_commits_are_strict()) &&
                (make_last() || (pm_commit_again(errno) && make_last())) && pm_commit_prepare();
    if (!good)
        pm_event(PM_EV_LAST_COMMIT_FAILED,
                 "PMALLOC_COMMIT: the commit at the end of the program has failed: %s; %s stays as "
                 "of the one before",
                 pm_commits_reason(errno), pm_heap.dir);
    else if (alone)
        pm_commit_cut();
    return good;
}

void pm_commits_no_end(void) {
    pm_event(
        PM_EV_LAST_COMMIT_FAILED,
        "PMALLOC_COMMIT: there is no commit at the end of the program, because it ends within a "
        "call of the allocator; %s stays as of the one before",
        pm_heap.dir);
}

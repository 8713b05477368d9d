// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The end of a program. In exit() there is one point after the handlers that main and its callees
// have registered, and before the destructors of what was constructed before main. Every store up
// to this point reaches the heap. At this point the process parts from its heap and goes on with
// private memory at the same addresses. The destructors of global containers free what the
// containers have; so they cannot change the heap.
//
//   one thread       parts, then writes what a clean close leaves: nothing changes any more
//   other threads    are held meanwhile (end_held.h), and the heap is closed as by one thread.
//   who is not held  is stopped while this thread parts. The heap stays dirty, as after a kill.
//   deaf threads     wait at their next store. All memory that holds data is unwritable before the
//                    first piece of it is replaced.
//   neither works    (a thread blocks SIGSEGV too, or memory is out) The process ends here, without
//                    destructors.
//
// Parting replaces several mappings, one after the other. A thread that stores meanwhile would do
// harm, whatever their order: the heap would get its later stores to one mapping and lack its
// earlier stores to another. For example, a root could point to a block whose contents are missing.
// So no thread may store to data meanwhile. Metadata may still change: an operation that was
// interrupted may go on, and leaves there what it might leave before a kill.
//
// Two kinds of locks cannot be waited for: one that this thread itself holds, because it is in a
// signal handler that interrupted the allocator, and one whose holder a debugger has stopped. In
// these cases the process parts without the locks, and does not read the tables of extents. After
// that, this thread takes no lock any more. It uses the allocator as a nested request does
// (cancel.h).
//
// While exit() runs, another thread or a signal handler may call it again. libc then goes on with
// the next handler. So everything that leads to a destructor (preload/names/) calls
// pm_process_end() first, and passes only when the process has parted:
//
//   the first caller, its signals blocked --> ENDING (phase.h) --> ENDED   pass
//                                                             `--> DOOMED  no destructors
//   A caller that finds ENDING is one of three:
//   another thread     It waits with its signals open: it can be stopped, and its handlers wait,
//                      too. If it holds a lock of ours (it is in a handler), the first caller stops
//                      waiting for locks.
//   the same thread    It is in a handler of SIGABRT, which abort() unblocks. The process ends
//                      without destructors.
//   another process    It is a child that skipped the fork handlers. It passes, because the heap is
//                      not its own.
//
// A signal handler that interrupts the first caller before ENDING is set becomes the first caller
// itself.
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/event_log.h"
#include "base/options.h"
#include "base/os.h"
#include "base/signal_stack.h"
#include "blocks/returns.h"
#include "blocks/stats.h"
#include "commit/background.h"
#include "commit/commit_cost.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "commit/outbox.h"
#include "commit/triggers.h"
#include "end_held.h"
#include "entry.h"
#include "fork/private.h"
#include "leaks.h"
#include "media/backing/marks.h"
#include "media/commit/commit.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "open.h"
#include "out_end.h"
#include "pages/frontier.h"
#include "recovery/beside.h"
#include "recovery/close.h"
#include "rootless.h"
#include "roots/root_table.h"
#include "sandbox.h"
#include "start.h"
#include "state/removed.h"
#include "state/replaced.h"
#include "threads/calls.h"
#include "threads/commit_gate.h"
#include "threads/sections.h"
#include "threads/threads.h"

static const char no_memory[] =
    "there is no memory for a private view of it (see `ulimit -d`, `ulimit -v`, "
    "vm.overcommit_memory and vm.max_map_count)";
static const char no_stop[] = "a thread does not stop";
#define KEPT "the heap %s keeps what it has, but %s; so the program ends here"

static bool closable = true; // the metadata is shared: a clean close may be written

static bool between = true; // the other threads are between operations, or wait

// The other threads while this one parts.
enum others {
    OTHERS_NONE,
    OTHERS_HELD,    // outside of the allocator: what this thread does is as if there were none
    OTHERS_STOPPED, // anywhere
};

static bool stores_held; // all memory that holds data is unwritable

static bool hold_memory(bool on) {
    stores_held = on;
    return pm_private_hold(on) && pm_roots_hold(on);
}

// Under PMALLOC_COMMIT memory is private already. A last commit keeps the changes. No new mapping
// takes the place of an unwritable one here.
static bool part_journaled(bool tables_whole, enum others others) {
    bool quiet = others != OTHERS_STOPPED;
    if (tables_whole) // then it is not amid a step
        pm_beside_stop();
    bool kept = tables_whole && pm_commits_end(quiet, between);
    if (!tables_whole)
        pm_commits_no_end();
    if (stores_held && !hold_memory(false))
        pm_abort(PM_EV_END_CUT_SHORT, KEPT, pm_heap.dir, no_memory);
    pm_private_keep(tables_whole);
    closable = kept && quiet && pm_commit_share_metadata();
    return true;
}

// With all locks, or without other threads.
static void mend_removed(void) {
    struct pm_error err;
    if (pm_removed(pm_heap_is_journaled()) && pm_removed_mend(&err) != PM_OK)
        pm_event(PM_EV_HEAP_LOST,
                 "the files of the heap %s were removed while the program used it, and cannot be "
                 "made again, so all of it is lost: %s",
                 pm_heap.dir, err.text);
}

static bool part(bool tables_whole, enum others others) {
    if (!pm_heap_on_media()) // a fork in another thread has handed the heap to its child
        return true;
    munlockall(); // after mlockall(MCL_FUTURE) the kernel would provide memory for the whole range
    if (pm_heap_is_journaled())
        return part_journaled(tables_whole, others);
    bool known = tables_whole && pm_private_find(false);
    // First of all: from here on nothing goes to the log, because the data will not reach the heap.
    pm_heap_become(PM_HEAP_PARTED);
    if (pm_roots_part() && pm_private_part(known, tables_whole, others == OTHERS_NONE))
        return true;
    if (!pm_roots_rejoin()) // some pages are private and some shared: no thread may store again
        pm_abort(PM_EV_END_CUT_SHORT, KEPT, pm_heap.dir, no_memory);
    pm_heap_become(PM_HEAP_SHARED);
    return false;
}

// What there is to say of a close. While threads are held nothing is said: one of them may be the
// reader.
static struct {
    bool failed, words_lead_out;
    int error;
} to_say;

static void say_close(void) {
    if (to_say.words_lead_out)
        pm_out_end_say();
    if (to_say.failed && !pm_sandbox_is_mute())
        pm_event(
            PM_EV_CLOSE_FAILED,
            "%s could not be closed cleanly: %s; it is dirty, and not all of it is durable: when "
            "the file system works again, start the program again or run pmalloc-recover",
            pm_heap.dir,
            to_say.error ? pm_strerror(to_say.error) : "an earlier call for its files has failed");
}

static void close_cleanly(void) {
    errno = 0;
    to_say.failed = !pm_close();
    to_say.error = errno;
}

// False: a stack is seized. A request of that thread was interrupted by a handler, or by the end of
// the thread.
static bool return_caches(enum others others) {
    if (others == OTHERS_HELD) {
        pm_free_deferred_of_all();
        return pm_tcaches_return();
    }
    if (pm_tcache == &pm_no_tcache)
        return true;
    pm_free_deferred();
    return pm_tcache_return(pm_tcache);
}

// Bitmaps would count a block in a cache as in use. A thread that has ended without telling us may
// have left some, unless they were looked for in all caches, and so may a request of this thread
// that a signal handler interrupted.
static bool are_exact(bool returned, enum others others) {
    return returned && !pm_tcache_lost &&
           (others == OTHERS_HELD || pm_tcache_live() <= (pm_tcache != &pm_no_tcache));
}

static const char *end_quietly(enum others others) {
    bool rooted = pm_heap_has_roots(), returned = return_caches(others);
    if (rooted) {
        pm_remote_drain_all();
        pm_arenas_drop_empty();
        pm_extent_cache_end();
        pm_extent_purge_some();
    }
    if (rooted)
        mend_removed();
    bool exact = are_exact(returned, others);
    to_say.words_lead_out = rooted && exact && pm_out_end_look();
    if (to_say.words_lead_out && others == OTHERS_NONE) { // before "clean" has it on record
        pm_out_end_say();
        to_say.words_lead_out = false;
    }
    if (!part(true, others))
        return rooted ? no_memory : NULL;
    if (!closable)
        return NULL;
    if (!rooted)
        pm_close_rootless();
    else if (exact)
        close_cleanly();
    return NULL;
}

static const char *end_alone(void) {
    const char *why = end_quietly(OTHERS_NONE);
    say_close();
    return why;
}

// ---- among others -------------------------------------------------------------------------------

#define PATIENCE_MS 5000  // a fork copies the heap under the locks
#define LOOK_US 100000    // at the gate: in a child of vfork() nobody would wake us
#define LOOK_AFTER_MS 100 // then look whether a debugger has stopped a thread: it may hold a lock

static struct {
    uint64_t look, until;
    unsigned held;
    bool late;
} locks;

static bool is_late(void) {
    uint64_t now = pm_os_now_ms();
    if (now >= locks.until || atomic_load_explicit(&pm_end_lock_waits, memory_order_acquire))
        return true;
    if (now < locks.look)
        return false;
    locks.look = now + LOOK_AFTER_MS;
    return pm_threads_stopped();
}

static void lock_in_time(struct pm_lock *lock) {
    const struct timespec pause = {0, 50000};
    bool got = false;
    while (!locks.late && !(got = pm_trylock_raw(lock))) {
        locks.late = is_late();
        nanosleep(&pause, NULL);
    }
    locks.held += got;
}

static void unlock_held(struct pm_lock *lock) {
    if (locks.held) {
        locks.held--;
        pm_unlock_raw(lock);
    }
}

// Once all locks are held, no thread is inside the allocator, and its tables are whole.
static bool lock_all(void) {
    if (pm_nested())
        return false;
    locks.late = false;
    locks.look = pm_os_now_ms() + LOOK_AFTER_MS;
    locks.until = locks.look + PATIENCE_MS;
    pm_process_each_lock(lock_in_time);
    if (locks.late)
        pm_process_each_lock(unlock_held);
    return !locks.late;
}

// Makes deaf threads wait at their next store. False also if this thread's own stack is in the
// heap, as a coroutine's may be, and it has none of ours: this thread would stop itself.
static bool hold_stores(void) {
    const void *here = __builtin_frame_address(0);
    return pm_heap_offset(here) >= pm_range && !pm_roots_captured(here) && pm_threads_catch() &&
           hold_memory(true);
}

// In commit mode the last commit lies between operations, as others do.
static bool is_instant(void) { return !pm_heap_is_journaled() || pm_gate_is_between(); }

static const char *part_from_others(bool tables_whole, bool last, enum pm_threads *threads) {
    *threads = pm_threads_stop();
    if (tables_whole && *threads == PM_THREADS_STILL && !is_instant()) {
        between = false;
        if (!last) {
            pm_threads_resume();
            *threads = PM_THREADS_DEAF;
            return no_stop;
        }
    }
    bool parted = false, held = *threads == PM_THREADS_RUN && hold_stores();
    if (tables_whole && *threads == PM_THREADS_STILL)
        mend_removed();
    if (held || *threads == PM_THREADS_STILL)
        parted = part(tables_whole, OTHERS_STOPPED);
    // While this thread tried to part, a deaf thread may have changed extents without the log.
    bool as_before = tables_whole || !held;
    if (!parted && *threads == PM_THREADS_RUN && !(as_before && hold_memory(false)))
        pm_abort(PM_EV_END_CUT_SHORT, KEPT, pm_heap.dir, held ? no_memory : no_stop);
    pm_threads_resume();
    if (parted)
        return NULL;
    return held || *threads == PM_THREADS_STILL ? no_memory : no_stop;
}

// A new thread blocks every signal for a moment. Meanwhile it may wait for the thread that makes
// it, which we have stopped, or for a lock that we hold. So between two tries all threads run on.
#define DEAF_TRIES 5

static const char *end_stopped(void) {
    const char *why = NULL;
    enum pm_threads threads = PM_THREADS_DEAF;
    if (!pm_heap_on_media() || !pm_heap_has_roots())
        return NULL; // the heap is a forked child's, or the next opening empties it
    for (unsigned tries = 0; tries < DEAF_TRIES && threads == PM_THREADS_DEAF; tries++) {
        between = true;
        if (pm_heap_is_journaled() && !pm_nested())
            pm_gate_shut(tries == 0 && pm_commits_are_strict());
        bool tables_whole = lock_all();
        why = part_from_others(tables_whole, tries + 1 == DEAF_TRIES, &threads);
        if (tables_whole)
            pm_process_each_lock(unlock_held);
        else if (!why)
            pm_locks_held++; // for good: the holder of a lock may never release it
    }
    pm_gate_open();
    return why;
}

static _Atomic bool gate_awaited; // set before a waiting thread's last look at the phase

// Sequentially consistent, and so is pass(): a thread that waits is either woken, or has seen the
// open gate. A thread that passes sees the new mappings.
static void open_gate(enum pm_phase how) {
    pm_phase_move(PM_ENDING, how);
    if (atomic_load(&gate_awaited))
        pm_futex_wake(&pm_phase_word, 1 << 30);
}

// The threads are held. They go on when it is done, and in mid-program once they have no heap any
// more: `then` has given it up. While they still ran, a fork may have handed the heap to its child.
static const char *end_held(void then(void)) {
    const char *why = pm_heap_on_media() ? end_quietly(OTHERS_HELD) : NULL;
    if (!why && then) {
        pm_marks_renew(0, pm_range);
        then();
        open_gate(PM_ENDED);
    }
    pm_end_release();
    if (!why)
        say_close();
    return why;
}

static const char *end_among_others(void) {
    enum pm_end_hold hold = pm_end_hold(&between);
    if (hold == PM_END_HELD)
        return end_held(NULL);
    const char *why = end_stopped();
    bool dirty = hold == PM_END_NOT_STILL && pm_heap_is_held() && pm_heap_has_roots();
    if (dirty && !why && !pm_sandbox_is_mute())
        pm_event(PM_EV_END_NOT_HELD,
                 "the heap %s keeps what it has, but is left as after a kill: a thread does not "
                 "come to rest; the next start recovers it",
                 pm_heap.dir);
    return why;
}

// ---- once ---------------------------------------------------------------------------------------

static _Atomic(const void *) ending; // the first caller's thread, by the address of its pm_tcache

// True for the first caller alone.
static bool come_first(enum pm_phase next) {
    enum pm_phase now;
    while ((now = pm_phase()) == PM_READY || now == PM_RUNNING)
        if (pm_phase_move(now, next))
            return true;
    return false;
}

// May run in a signal handler. May also run in a child of vfork(): the child shares our memory, but
// it must not remove our heap.
void pm_process_leave(void) {
    pm_trigger_tells(); // the status of this process
    if (pm_phase_serves() && pm_heap_on_media() && pm_process_default_heap() &&
        !pm_sandbox_forbids_end() && !pm_heap_has_roots() &&
        pm_heap.super->state.owner_pid == (uint64_t)getpid() &&
        come_first(PM_ENDED)) // once removed, another process's heap may soon have its name
        pm_heap_remove();
}

// All signals are blocked, except those that this thread causes itself.
static const char *end_heap(void) {
    if (!pm_heap_on_media())
        return NULL;
    if (pm_process_default_heap() && !pm_heap_has_roots()) {
        pm_heap_remove(); // the mapping stays for threads that still run
        return NULL;
    }
    bool alone = !pm_nested() && pm_background_stop() && pm_threads_none();
    if (!pm_nested())
        pm_marks_look();
    return alone ? end_alone() : end_among_others();
}

static bool pass(void) {
    uint32_t seen;
    if (pm_nested())
        atomic_store_explicit(&pm_end_lock_waits, true, memory_order_release);
    while ((seen = pm_phase()) == PM_ENDING) {
        if (atomic_load_explicit(&ending, memory_order_relaxed) == &pm_tcache)
            return false;
        if (pm_heap.super->state.owner_pid != (uint64_t)getpid())
            return true;
        atomic_store(&gate_awaited, true);
        pm_calls_wait_us(&pm_phase_word, seen, LOOK_US, PM_CALL_OTHER);
    }
    return seen == PM_ENDED;
}

// Called before signals are blocked, because the reader of this output may be slow and must not
// delay the end.
static void say_once(void) {
    static _Atomic bool said;
    pm_leaks_report();
    if (pm_options.stats.number && !pm_nested() && !atomic_exchange(&said, true)) {
        pm_stats_say();
        pm_commit_cost_say();
        pm_outbox_say();
    }
    static _Atomic bool lost;
    if (!pm_nested() && !atomic_exchange(&lost, true)) {
        pm_rootless_say_end(pm_process_default_heap());
        pm_late_end();
        pm_replaced_end();
    }
    if (pm_event_log_wanted())
        pm_event_log_end();
}

// In mid-program: the other threads are held first, because what has begun to end does not go back.
struct mid_program {
    void (*then)(void); // before the threads go on
    bool refused;       // and nothing has changed
};

// False: a thread does not come to rest, or rests amid a request, or another one ends the program.
static bool begin_to_end(const struct mid_program *mid) {
    if (mid && pm_end_hold(&between) != PM_END_HELD)
        return false;
    bool exact = !mid || (pm_heap_on_media() && are_exact(return_caches(OTHERS_HELD), OTHERS_HELD));
    bool first = exact && come_first(PM_ENDING);
    if (mid && !first)
        pm_end_release();
    return first;
}

static void end_once(struct mid_program *mid) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    const char *why = NULL;
    bool begun = begin_to_end(mid);
    if (mid)
        mid->refused = !begun;
    if (begun) {
        atomic_store_explicit(&ending, &pm_tcache, memory_order_relaxed);
        if (!mid)
            pm_sections_no_more();
        why = mid ? end_held(mid->then) : end_heap();
        if (!why && !mid && !pm_nested())
            pm_marks_renew(0, pm_range);
        if (!why && !mid)
            open_gate(PM_ENDED);
        sigdelset(&before, SIGSEGV); // see pm_private_part()
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (why) { // print before waking: a thread that is woken may end the process at once
        pm_event(PM_EV_END_CUT_SHORT, KEPT ", without its destructors, which would free that",
                 pm_heap.dir, why);
        open_gate(PM_DOOMED);
    }
}

// Makes no system call, where the filter forbids so much that there are no commits any more. In
// commit mode memory is private, and what destructors do to it is never committed.
static bool end_in_sandbox(void) {
    bool journaled = pm_heap_is_journaled();
    if (journaled && !pm_commits_are_stopped())
        pm_commits_stop(true);
    bool good = journaled || !pm_heap_on_media() || !pm_heap_has_roots();
    if (!good)
        pm_sandbox_say_end();
    return good;
}

// A child that shares the memory of the heap's process, or has a copy of it and has skipped the
// handlers of fork. The heap is not its own, and the threads are not there.
static bool is_another_process(void) {
    return pm_heap_is_held() && pm_heap.super->state.owner_pid != (uint64_t)getpid();
}

static void end_on_own_stack(void *mid) { end_once(mid); }

bool pm_process_end(void) {
    if (!pm_phase_serves())
        return true;
    if (pm_sandbox_forbids_end())
        return end_in_sandbox();
    bool first = pm_phase() < PM_ENDING;
    if (first && is_another_process())
        return true;
    if (first)
        say_once();
    if (!pm_heap_is_held()) // no heap; and a sandbox may forbid the system calls below
        return true;
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    if (first)
        pm_signal_stack_run(end_on_own_stack, NULL); // the program's may be small
    if (first && pm_outbox_on)
        pm_outbox_last();
    bool good = pass();
    pm_cancel_release(held);
    errno = saved;
    return good;
}

bool pm_process_end_beside(void then(void)) {
    struct mid_program mid = {.then = then};
    int saved = errno;
    say_once();
    struct pm_cancel held = pm_cancel_hold();
    pm_signal_stack_run(end_on_own_stack, &mid);
    pm_cancel_release(held);
    if (!mid.refused && pm_phase() != PM_ENDED)
        pm_refuse(PM_EV_END_CUT_SHORT, PM_NO_CLOSE);
    errno = saved;
    return !mid.refused;
}

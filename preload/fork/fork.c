// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork.h"

#include <asm/prctl.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aside.h"
#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/file_limit.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "blocks/arena.h"
#include "blocks/returns.h"
#include "blocks/tcache.h"
#include "commit/background.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "commit/triggers.h"
#include "fork_call.h"
#include "fork_exclude.h"
#include "fork_gate.h"
#include "fork_streams.h"
#include "fork_trap.h"
#include "media/backing/marks.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "pages/extent.h"
#include "private.h"
#include "recovery/recover.h"
#include "roots/root_table.h"
#include "state/advice.h"
#include "state/heap_copy.h"
#include "state/phase.h"
#include "threads/postpone.h"
#include "threads/threads.h"

// If less than this is in use, a copier costs more than copying at once.
#define COPY_AT_ONCE ((uint64_t)512 << 10)
// The copier first waits about an eighth of the time of copying: the child may execute a program.
#define DELAY_US_PER_MB 60
#define DELAY_US_MAX 2000
// What may be the cause if memory is out.
#define SEE_LIMITS "see `ulimit -v`, `ulimit -d` and vm.overcommit_memory"
#define NO_MEMORY PM_EV_FORK_REFUSED, "fork: no memory for "
// How long a child waits for its parent's end, to know whether it is a daemon's last fork.
#define PARENT_TICKS 500
#define PARENT_TICK_NS 2000000

enum plan {
    NOTHING,        // there is no heap
    NOT_OPEN,       // there is none yet; the child goes on waiting as its parent does
    PRIVATE,        // the child goes private
    COPY,           // the child makes a heap copy
    TAKE,           // follow: the child goes on with the heap, the parent goes private
    COPY_THEN_TAKE, // follow: the child makes a heap copy, and takes the heap if the parent ends
    REFUSE          // there is no memory for a gate: the child ends with a message
};

// Under PMALLOC_FORK=follow: what the next fork of this process is.
static enum { FIRST_FORK, FORK_OF_TAKER, NO_MORE } follow = FIRST_FORK;

static struct fork_state {
    enum plan plan;
    struct pm_fork_gate *gate; // NULL for NOTHING and REFUSE
    bool one_thread;
    bool streams; // see fork_streams.h
    struct pm_aside aside;
    bool trapped;        // pm_fork_trap_clear() is due
    bool parted;         // the heap has one process again: part_in_call() has seen to it
    bool forked;         // if so: there is a child
    unsigned long flags; // of clone()
    void *storage;       // with CLONE_SETTLS: the child's thread pointer
    int saved_errno;
    struct pm_cancel cancel;
    uint64_t mask;
    pid_t parent;
} fork_state;

const struct pm_machine pm_fork_machine = {
    .what = "a fork",
    .state = {
        [PM_STAGE_NONE] = {"none", PM_MAY(PM_STAGE_PREPARED)},
        [PM_STAGE_PREPARED] = {"prepared", PM_MAY(PM_STAGE_NONE) | PM_MAY(PM_STAGE_WAITING) |
                                               PM_MAY(PM_STAGE_MAKING_HEAP) |
                                               PM_MAY(PM_STAGE_COPYING)},
        [PM_STAGE_WAITING] = {"waiting", PM_MAY(PM_STAGE_NONE)},
        [PM_STAGE_MAKING_HEAP] = {"making a heap", PM_MAY(PM_STAGE_NONE) |
                                                       PM_MAY(PM_STAGE_COPYING) |
                                                       PM_MAY(PM_STAGE_WAITING)},
        [PM_STAGE_COPYING] = {"copying", PM_MAY(PM_STAGE_NONE) | PM_MAY(PM_STAGE_COPIER_RUNS)},
        [PM_STAGE_COPIER_RUNS] = {"copying in a thread", PM_MAY(PM_STAGE_NONE)},
    }};

static enum pm_fork_stage stage;

enum pm_fork_stage pm_fork_stage(void) { return stage; }

static void become(enum pm_fork_stage next) {
    pm_machine_check(&pm_fork_machine, stage, next);
    stage = next;
}

static void done(void) {
    if (stage != PM_STAGE_COPIER_RUNS)
        become(PM_STAGE_NONE);
}

// Blocks every signal, also libc's internal ones, which libc's functions leave out.
static void block_signals(void) {
    uint64_t all = ~0ull;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &fork_state.mask, sizeof all);
}

// Gives the thread back what prepare() postponed.
static void admit(const struct fork_state *was, bool child) {
    pm_fork_streams_unlock(was->streams, child);
    if (was->plan != NOTHING && was->plan != NOT_OPEN)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &was->mask, NULL, sizeof was->mask);
    pm_cancel_release(was->cancel);
}

void pm_fork_finish_copy(void) { pm_private_await(); }

// ---- before -------------------------------------------------------------------------------------

static enum plan follow_plan(bool one_thread) {
    bool taker = follow == FORK_OF_TAKER && getsid(0) == getpid() && one_thread;
    return follow == FIRST_FORK ? TAKE : taker ? COPY_THEN_TAKE : PRIVATE;
}

static enum plan make_plan(bool one_thread) {
    if (!pm_heap_is_held())
        return NOTHING;
    // After the end of the program memory is private already. The child gives up the lock, and
    // copies the pages that still show the file.
    if (!pm_heap_on_media() || !pm_phase_serves())
        return PRIVATE;
    switch (pm_options.fork.number) {
    case PM_FORK_COPY:
        return COPY;
    case PM_FORK_FOLLOW:
        return follow_plan(one_thread);
    }
    return PRIVATE;
}

static void lock_rest(struct pm_lock *lock) {
    if (lock != &pm_commit_lock)
        pm_lock_raw(lock);
}

// Whether libc's code may store to what the two processes share until one of them goes private: to
// the stack, to its data of this thread and, if there are other threads, to the locks of streams.
static bool shares_before_parting(void) {
    bool shared = pm_heap_state() == PM_HEAP_SHARED;
    return fork_state.aside.stack || fork_state.aside.storage || (shared && !fork_state.one_thread);
}

static long part_in_call(void *call);

// Who shares our descriptors can have no heap, and whose end as a child cannot be known does not
// get its parent's.
static enum plan plan_for(unsigned long flags, bool one_thread) {
    enum plan plan = make_plan(one_thread);
    bool follows = plan == TAKE || plan == COPY_THEN_TAKE;
    bool apart = flags & (CLONE_VFORK | CLONE_PARENT | CLONE_NEWPID);
    return (flags & CLONE_FILES && (follows || plan == COPY)) || (apart && follows) ? PRIVATE
                                                                                    : plan;
}

// Who makes the system call. Another C library has an errno of its own, which we cannot ask.
enum maker { LIBC, OTHER_LIBC, US };

// From here to admit() a handler waits: its own fork would find this one half done.
static void prepare(unsigned long flags, enum maker by) {
    int saved = errno;
    struct pm_cancel cancel = pm_cancel_hold(); // fork() is no cancellation point, but close() is
    bool streams = pm_fork_streams_lock();
    if (pm_phase_hold_start()) {
        fork_state = (struct fork_state){.plan = NOT_OPEN, .cancel = cancel, .streams = streams};
        return;
    }
    if (pm_options.fork.number == PM_FORK_FOLLOW && pm_heap_on_media())
        pm_marks_look(); // this process may go private
    pm_trigger_tells();  // the child, which may say all that it finds
    pm_private_await();  // it may take long, so wait before taking the locks
    pm_commit_lock_take();
    pm_process_each_lock(lock_rest);
    if (stage == PM_STAGE_COPIER_RUNS) { // of our last fork, or of another thread's
        pm_private_finish_copy();
        become(PM_STAGE_NONE);
    }
    become(PM_STAGE_PREPARED);
    fork_state = (struct fork_state){.saved_errno = saved,
                                     .cancel = cancel,
                                     .streams = streams,
                                     .one_thread = pm_os_one_thread(),
                                     .flags = flags};
    fork_state.plan = plan_for(flags, fork_state.one_thread);
    if (fork_state.plan != NOTHING) {
        // Until the handlers after it no signal's may store to the heap, or end the child.
        block_signals();
        fork_state.parent = getpid();
        fork_state.gate = pm_fork_gate_new();
        if (!pm_fork_exclude(false) && fork_state.gate) {
            pm_fork_gate_drop(fork_state.gate);
            fork_state.gate = NULL;
        }
        if (!fork_state.gate)
            fork_state.plan = REFUSE;
        fork_state.aside = pm_aside_look();
        if ((by == OTHER_LIBC || shares_before_parting()) && pm_aside_prepare())
            fork_state.trapped = by != US && pm_fork_trap_set(part_in_call);
    }
    errno = 0; // libc calls the parent's handler also after a fork that failed, with errno set
}

// ---- going private ------------------------------------------------------------------------------

static uint64_t run_bytes(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++)
        bytes += run[i].len;
    return bytes;
}

// Makes the kernel copy every page: now or, with `in_thread`, in the copier.
static void copy(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold, bool in_thread) {
    uint64_t bytes = run_bytes(), delay = (bytes >> 20) * DELAY_US_PER_MB;
    if (delay > DELAY_US_MAX)
        delay = DELAY_US_MAX;
    if (in_thread && bytes > COPY_AT_ONCE && pm_private_start_copier(gate, (unsigned)delay)) {
        become(PM_STAGE_COPIER_RUNS);
        pm_fork_gate_leave(hold);
        return;
    }
    pm_private_copy();
    pm_fork_gate_open(gate);
    pm_fork_gate_leave(hold);
    pm_fork_gate_drop(gate);
}

// This process goes on with private memory, and leaves the heap to the other process. False: memory
// is out.
static bool go_private(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold, bool in_thread) {
    pm_late_never();
    bool others = fork_state.plan == TAKE && !fork_state.one_thread; // they go on meanwhile
    if (pm_heap_on_media() && !(pm_private_enter(others) && pm_roots_privatise()))
        return false;
    if (pm_heap_is_held())
        pm_heap_release();
    become(PM_STAGE_COPYING);
    // Release: a process that sees this also sees that the private mappings are in place.
    atomic_store_explicit(&gate->stage, PM_STAGE_COPYING, memory_order_release);
    copy(gate, hold, in_thread);
    return true;
}

static void wait_for_other(struct pm_fork_gate *gate, bool (*give_up)(struct pm_fork_gate *gate)) {
    become(PM_STAGE_WAITING);
    pm_fork_gate_wait(gate, give_up);
    pm_fork_gate_drop(gate);
}

static struct pm_fork_gate_hold take(struct pm_fork_gate *gate) {
    struct pm_fork_gate_hold hold = pm_fork_gate_take(gate);
    gate->pid = pm_os_proc_pid();
    return hold;
}

// ---- after: the parent --------------------------------------------------------------------------

// Asked while the parent waits for the child's copies. A child that is stopped, by a debugger or by
// itself, may go on only when this process does something. So the parent does not wait for it, but
// copies the child's pages from outside. True: the parent need not wait any more.
static bool child_needs_no_waiting(struct pm_fork_gate *gate) {
    pid_t pid = gate->pid ? gate->pid : pm_os_newest_child();
    char state = pid ? pm_os_state(pid) : 'R';
    if (state == 'T')
        return atomic_load_explicit(&gate->stage, memory_order_acquire) == PM_STAGE_COPYING &&
               pm_private_copy_stopped(pid);
    return state == 'Z' || state == 'X' || (!state && kill(pid, 0) != 0 && errno == ESRCH);
}

// Under `follow`: the child has the heap now, and this process goes on with private memory.
static void hand_over(struct pm_fork_gate *gate) {
    munlockall(); // after mlockall(MCL_FUTURE) the kernel would provide the whole range at once
    if (!go_private(gate, take(gate), true))
        pm_refuse(NO_MEMORY
                  "a private copy of the heap, which the child has taken over; " SEE_LIMITS);
}

static bool was_not_open(bool child) {
    if (fork_state.plan != NOT_OPEN)
        return false;
    int saved = errno;
    struct fork_state mine = fork_state;
    pm_phase_release_start();
    admit(&mine, child);
    errno = saved;
    return true;
}

static void part_parent(bool forked) {
    if (fork_state.gate && !forked)
        pm_fork_gate_drop(fork_state.gate);
    else if (fork_state.plan == TAKE)
        hand_over(fork_state.gate);
    else if (fork_state.gate)
        wait_for_other(fork_state.gate, child_needs_no_waiting);
}

static void after_in_parent(void) {
    if (was_not_open(false))
        return;
    bool forked = fork_state.parted ? fork_state.forked : errno == 0;
    int saved = forked ? fork_state.saved_errno : errno;
    if (fork_state.trapped)
        pm_fork_trap_clear();
    if (!fork_state.parted)
        part_parent(forked);
    if (forked)
        follow = NO_MORE;
    done();
    pm_fork_exclude(true);
    struct fork_state mine = fork_state; // without the locks, another thread may fork
    pm_process_each_lock(pm_unlock_raw);
    if (mine.plan == TAKE)
        pm_marks_renew(0, pm_range); // its mappings are new
    admit(&mine, false);
    errno = saved;
}

// ---- after: the child ---------------------------------------------------------------------------

static bool parent_has_ended(struct pm_fork_gate *gate) {
    (void)gate;
    return getppid() != fork_state.parent;
}

static void say_owner(void) {
    if (pm_options.verbose.number)
        pm_event(PM_EV_FORK_OWNER, "fork: process %d has the heap %s now", getpid(), pm_heap.dir);
}

static _Noreturn void refuse_child(void) {
    pm_refuse(NO_MEMORY "the child's copy of the heap; " SEE_LIMITS);
}

static void child_private(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold) {
    if (!go_private(gate, hold, fork_state.one_thread))
        refuse_child();
}

// True: the child runs on its copy, and the gate is closed. False: no room; it has gone private.
static bool make_heap_copy(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold) {
    struct pm_error err;
    become(PM_STAGE_MAKING_HEAP);
    int status = pm_heap_copy_make(&err);
    if (status != PM_OK) {
        pm_event(PM_EV_FORK_FAILED,
                 "fork: %s; process %d goes on in private memory, nothing of it is kept", err.text,
                 (int)getpid());
        child_private(gate, hold);
        return false;
    }
    if (pm_roots_remap(&err) != PM_OK)
        pm_refuse(PM_EV_FORK_REFUSED, "fork: %s", err.text);
    return true;
}

static void open_gate(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold) {
    pm_fork_gate_open(gate);
    pm_fork_gate_leave(hold);
    pm_fork_gate_drop(gate);
}

static void child_copy(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold) {
    if (!make_heap_copy(gate, hold))
        return;
    pm_heap_copy_part();
    open_gate(gate, hold);
    say_owner();
}

// The parent goes private. The child waits until the parent has copied its pages, or has ended.
// Then the child may write the heap.
static void child_take(struct pm_fork_gate *gate) {
    wait_for_other(gate, parent_has_ended);
    pm_heap_dirty();
    say_owner();
}

static bool parent_ends_soon(void) {
    const struct timespec tick = {.tv_nsec = PARENT_TICK_NS};
    for (int i = 0; i < PARENT_TICKS && !parent_has_ended(NULL); i++)
        nanosleep(&tick, NULL);
    return parent_has_ended(NULL);
}

// The fork may be a daemon's last one, or a worker's. The child cannot know at once: a daemon's
// parent ends soon, a worker's does not.
static void child_copy_then_take(struct pm_fork_gate *gate, struct pm_fork_gate_hold hold) {
    struct pm_error err;
    if (!make_heap_copy(gate, hold))
        return;
    open_gate(gate, hold);
    become(PM_STAGE_WAITING);
    if (parent_ends_soon()) {
        if (pm_heap_copy_take_place(&err) != PM_OK)
            pm_event(PM_EV_FORK_FAILED, "fork: %s", err.text);
        say_owner();
        return;
    }
    if (!pm_private_enter(false) || !pm_roots_privatise())
        refuse_child();
    pm_private_forget(); // nobody else writes the heap copy
    pm_heap_remove();
    pm_heap_release();
    pm_heap_copy_part();
}

// Changes that the program has made to pages unseen would be lost.
static bool changes_mappings(void) {
    bool makes_heap = fork_state.plan == COPY || fork_state.plan == COPY_THEN_TAKE;
    return makes_heap ||
           (fork_state.plan == PRIVATE && pm_heap_on_media() && !pm_heap_is_journaled());
}

static void part_child(void) {
    pm_postpone_here();
    struct pm_fork_gate *gate = fork_state.gate;
    pm_process_each_lock(pm_lock_reset);
    pm_file_limit_forked();
    pm_background_forked();
    pm_threads_forked();
    pm_phase_forked();
    follow = fork_state.plan == TAKE ? FORK_OF_TAKER : NO_MORE;
    struct pm_fork_gate_hold hold = {0};
    if (gate && fork_state.plan != TAKE)
        hold = take(gate);
    if (changes_mappings())
        pm_marks_look();
    switch (fork_state.plan) {
    case NOT_OPEN:
    case NOTHING:
        break;
    case PRIVATE:
        child_private(gate, hold);
        break;
    case COPY:
        child_copy(gate, hold);
        break;
    case TAKE:
        child_take(gate);
        break;
    case COPY_THEN_TAKE:
        child_copy_then_take(gate, hold);
        break;
    case REFUSE:
        refuse_child();
    }
}

static void after_in_child(void) {
    pm_postpone_here();
    if (was_not_open(true))
        return;
    if (fork_state.trapped)
        pm_fork_trap_clear();
    if (!fork_state.parted)
        part_child();
    if (fork_state.aside.storage) { // its own variables are as they were in the parent
        pm_process_each_lock(pm_lock_reset);
        pm_threads_forked();
    }
    pm_advice_forked();
    done();
    pm_fork_exclude(true);
    pm_tcache_orphans(pm_tcache);
    if (!fork_state.one_thread) {
        pm_extent_cache_orphans();
        pm_remote_orphans();
    }
    pm_commits_forked(pm_heap_is_journaled());
    if (pm_heap_on_media())
        pm_background_start();
    struct fork_state mine = fork_state; // a handler may fork
    admit(&mine, true);
    errno = mine.saved_errno;
}

// ---- the call -----------------------------------------------------------------------------------

// Under `follow` the parent's mappings are new. A thread of its that waits for the end of this one
// sleeps on the page that was there, in the file, and would not hear of it. The child can wake it.
// It looks once more, and sleeps on the new page.
static void wake_joiners(const int *word) {
    if (fork_state.plan == TAKE && word)
        pm_bare_call(SYS_futex, (long)word, FUTEX_WAKE, INT_MAX, 0);
}

// Where the kernel stores 0 when this thread ends.
static const int *end_word(void) {
    const int *word = NULL;
    return pm_bare_call(SYS_prctl, PR_GET_TID_ADDRESS, (long)&word, 0, 0) == 0 ? word : NULL;
}

// Makes the system call, and returns only when the heap has one process again. The thread is aside
// if it has to be.
static long part_in_call(void *call) {
    struct pm_fork_making making = {.call = *(const struct pm_fork_call *)call};
    const int *end = fork_state.plan == TAKE ? end_word() : NULL;
    // A parent that sleeps until its child executes keeps its other threads from the allocator.
    pm_fork_call_adapt(&making, fork_state.one_thread);
    if (fork_state.aside.storage)
        pm_aside_enter();
    long pid = pm_fork_call_make(&making);
    if (pid == 0) {
        pm_os_descriptors_shared |= (fork_state.flags & CLONE_FILES) != 0;
        part_child();
    } else {
        part_parent(pid > 0);
    }
    if (fork_state.aside.storage)
        pm_aside_leave();
    if (pid == 0) {
        wake_joiners(end);
        pm_fork_call_store_tid(&making);
    }
    fork_state.storage = making.storage;
    fork_state.parted = true;
    fork_state.forked = pid > 0;
    return pid;
}

// glibc removes the handlers of pthread_atfork() after our destructors have run, but destructors of
// other libraries may still fork. Handlers of __register_atfork() without a library's handle stay.
// That is safe, because this library is never unloaded (-z nodelete).
#ifdef __GLIBC__
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
#else
#define __register_atfork(prepare, parent, child, object) pthread_atfork(prepare, parent, child)
#endif

static void before_fork(void) { prepare(0, LIBC); }

void pm_fork_init(void) { __register_atfork(before_fork, after_in_parent, after_in_child, NULL); }

static void before_fork_elsewhere(void) { prepare(0, OTHER_LIBC); }

void pm_fork_init_elsewhere(pm_register_atfork *in_space) {
    in_space(before_fork_elsewhere, after_in_parent, after_in_child, NULL);
}

bool pm_fork_serves(void) { return pm_phase_serves() && !pm_nested(); }

long pm_fork_call(const struct pm_fork_call *call) {
    struct pm_fork_call mine = *call;
    prepare(pm_fork_call_flags(call), US);
    bool aside = fork_state.aside.stack || fork_state.aside.storage;
    long pid = aside ? pm_aside_call(part_in_call, &mine) : part_in_call(&mine);
    void *storage = fork_state.storage;
    if (pid < 0)
        errno = (int)-pid;
    if (pid != 0) {
        after_in_parent(); // errno tells it whether there is a child
        return pid;
    }
    after_in_child();
    if (storage)
        pm_bare_call(SYS_arch_prctl, ARCH_SET_FS, (long)storage, 0, 0);
    return 0;
}

pid_t pm_fork_bare(pid_t (*next)(void)) {
    prepare(0, LIBC);
    pid_t pid = next();
    if (pid == 0)
        after_in_child();
    else
        after_in_parent();
    return pid;
}

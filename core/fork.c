// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arena.h"
#include "collector.h"
#include "extent.h"
#include "gate.h"
#include "options.h"
#include "os.h"
#include "private.h"
#include "runtime.h"
#include "tcache.h"
#include "twin.h"

// Below this much in use the copier thread costs more than copying.
#define COPY_AT_ONCE ((uint64_t)512 << 10)
// The copier waits a little for the child to execute another program: an eighth of what copying takes.
#define DELAY_US_PER_MB 60
#define DELAY_US_MAX 2000
// How long a daemon's last parent may take to end.
#define PARENT_TICKS 500
#define PARENT_TICK_NS 2000000

enum plan {
    NOTHING,  // no heap to look after
    PRIVATE,  // the child goes private
    COPY,     // the child makes a twin
    TAKE,     // follow: the child goes on with the heap, the parent goes private
    TAKE_TWIN // follow: the child makes a twin, and has it take the heap's place if the parent ends
};

// Of this process, under PMALLOC_FORK=follow.
static enum { FIRST_FORK, FORK_OF_TAKER, NO_MORE } follow = FIRST_FORK;

static struct {
    enum plan plan;
    struct pm_gate *gate;
    bool one_thread;
    int saved_errno;
    uint64_t mask;
    pid_t parent;
} fork_state;

// Every signal, libc's own among them, which its functions would leave out.
static void block_signals(void) {
    uint64_t all = ~0ull;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &fork_state.mask, sizeof all);
}

static void unblock_signals(void) {
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &fork_state.mask, NULL, sizeof fork_state.mask);
}

bool pm_fork_guard(bool on) {
    if (!pm_heap.persistent)
        return true;
    bool heap =
        pm_os_advise((void *)(uintptr_t)pm_base, pm_range, on ? MADV_DONTFORK : MADV_DOFORK);
    return pm_collector.guard(on) && heap;
}

void pm_fork_settle(void) { pm_private_await(); }

// ---- before ------------------------------------------------------------------------------------------

static enum plan follow_plan(bool one_thread) {
    bool taker = follow == FORK_OF_TAKER && getsid(0) == getpid() && one_thread;
    return follow == FIRST_FORK ? TAKE : taker ? TAKE_TWIN : PRIVATE;
}

static enum plan make_plan(bool one_thread) {
    unsigned uncopied;
    if (!pm_heap.persistent) {
        pm_private_runs(&uncopied); // of a heap that the process has parted from at its end
        return uncopied || pm_heap.super ? PRIVATE : NOTHING;
    }
    if (pm_phase() != PM_READY)
        return PRIVATE;
    switch (pm_options.fork.number) {
    case PM_FORK_COPY:
        return COPY;
    case PM_FORK_FOLLOW:
        return follow_plan(one_thread);
    }
    return PRIVATE;
}

static void prepare(void) {
    int saved = errno;
    pm_private_await(); // rather than under the locks
    pm_runtime_each_lock(pm_lock_raw);
    pm_private_settle(); // of another thread's fork meanwhile
    fork_state.saved_errno = saved;
    fork_state.one_thread = pm_os_one_thread();
    fork_state.gate = NULL;
    fork_state.plan = make_plan(fork_state.one_thread);
    if (fork_state.plan != NOTHING) {
        block_signals(); // no handler may store to the heap, or end the child, before the handlers below have run
        fork_state.parent = getpid();
        fork_state.gate = pm_gate_new();
        if (!pm_fork_guard(false) && fork_state.gate) {
            pm_gate_drop(fork_state.gate);
            fork_state.gate = NULL;
        }
        if (!fork_state.gate)
            fork_state.plan = PRIVATE; // and the child will be refused
    }
    errno = 0; // libc calls the parent's handler after a fork that failed, too
}

// ---- going private -----------------------------------------------------------------------------------

static uint64_t run_bytes(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++)
        bytes += run[i].len;
    return bytes;
}

// Copies now or, with `behind`, in a thread of its own.
static void copy(struct pm_gate *gate, struct pm_gate_hold hold, bool behind) {
    uint64_t bytes = run_bytes(), delay = (bytes >> 20) * DELAY_US_PER_MB;
    if (delay > DELAY_US_MAX)
        delay = DELAY_US_MAX;
    if (behind && bytes > COPY_AT_ONCE && pm_private_copy_behind(gate, (unsigned)delay)) {
        pm_gate_leave(hold);
        return;
    }
    pm_private_copy();
    pm_gate_open(gate);
    pm_gate_leave(hold);
    pm_gate_drop(gate);
}

// The calling process leaves the heap to the other one, or has none. False: no memory for it.
static bool go_private(struct pm_gate *gate, struct pm_gate_hold hold, bool behind) {
    if (pm_heap.persistent && !(pm_private_enter() && pm_collector.privatise()))
        return false;
    if (pm_heap.super)
        pm_heap_release();
    // Release: what is mapped is the process's own.
    atomic_store_explicit(&gate->mapped, 1, memory_order_release);
    copy(gate, hold, behind);
    return true;
}

static struct pm_gate_hold take(struct pm_gate *gate) {
    struct pm_gate_hold hold = pm_gate_take(gate);
    gate->pid = pm_os_proc_pid();
    return hold;
}

// ---- after: the parent -------------------------------------------------------------------------------

// While the child copies. One that is stopped, by a debugger or by itself, may be waiting for this very process.
static bool child_needs_no_waiting(struct pm_gate *gate) {
    pid_t pid = gate->pid ? gate->pid : pm_os_newest_child();
    char state = pid ? pm_os_state(pid) : 'R';
    if (state == 'T')
        return atomic_load_explicit(&gate->mapped, memory_order_acquire) &&
               pm_private_copy_stopped(pid);
    return state == 'Z' || state == 'X' || (!state && kill(pid, 0) != 0 && errno == ESRCH);
}

// follow: what this process still has to do, it does in private memory.
static void hand_over(struct pm_gate *gate) {
    munlockall(); // after mlockall(MCL_FUTURE) the whole range would be made real
    if (!go_private(gate, take(gate), true))
        pm_refuse("fork: no memory for a private copy of the heap, which the child has taken over");
}

static void after_in_parent(void) {
    bool forked = errno == 0;
    int saved = forked ? fork_state.saved_errno : errno;
    if (fork_state.gate && forked && fork_state.plan == TAKE) {
        hand_over(fork_state.gate);
    } else if (fork_state.gate) {
        if (forked)
            pm_gate_wait(fork_state.gate, child_needs_no_waiting);
        pm_gate_drop(fork_state.gate);
    }
    if (forked)
        follow = NO_MORE;
    pm_fork_guard(true);
    pm_runtime_each_lock(pm_unlock_raw);
    if (fork_state.plan != NOTHING)
        unblock_signals();
    errno = saved;
}

// ---- after: the child --------------------------------------------------------------------------------

static bool parent_has_ended(struct pm_gate *gate) {
    (void)gate;
    return getppid() != fork_state.parent;
}

static void say_owner(void) {
    if (pm_options.verbose.number)
        pm_say("fork: process %d has the heap %s now", (int)getpid(), pm_heap.dir);
}

static void child_private(struct pm_gate *gate, struct pm_gate_hold hold) {
    if (!go_private(gate, hold, fork_state.one_thread))
        pm_refuse("fork: no memory for the child's copy of the heap");
}

// True: the child runs on a twin, and the gate is still closed.
static bool make_twin(struct pm_gate *gate, struct pm_gate_hold hold) {
    struct pm_error err;
    int status = pm_twin_make(&err);
    if (status != PM_OK) {
        pm_say("fork: %s; process %d goes on in private memory, nothing of it is kept", err.text,
               (int)getpid());
        child_private(gate, hold);
        return false;
    }
    if (pm_collector.remap(&err) != PM_OK)
        pm_refuse("fork: %s", err.text);
    return true;
}

static void open_gate(struct pm_gate *gate, struct pm_gate_hold hold) {
    pm_gate_open(gate);
    pm_gate_leave(hold);
    pm_gate_drop(gate);
}

static void child_copy(struct pm_gate *gate, struct pm_gate_hold hold) {
    if (!make_twin(gate, hold))
        return;
    pm_twin_part();
    open_gate(gate, hold);
    say_owner();
}

// The parent has gone private; it writes the heap no more when it has copied what it needs, or ended.
static void child_take(struct pm_gate *gate) {
    pm_gate_wait(gate, parent_has_ended);
    pm_gate_drop(gate);
    pm_heap_dirty();
    say_owner();
}

static bool parent_ends_soon(void) {
    const struct timespec tick = {.tv_nsec = PARENT_TICK_NS};
    for (int i = 0; i < PARENT_TICKS && !parent_has_ended(NULL); i++)
        nanosleep(&tick, NULL);
    return parent_has_ended(NULL);
}

// A daemon's last fork, or that of a worker: only time tells.
static void child_take_twin(struct pm_gate *gate, struct pm_gate_hold hold) {
    struct pm_error err;
    if (!make_twin(gate, hold))
        return;
    open_gate(gate, hold);
    if (parent_ends_soon()) {
        if (pm_twin_take_place(&err) != PM_OK)
            pm_say("fork: %s", err.text);
        say_owner();
        return;
    }
    if (!pm_private_enter() || !pm_collector.privatise())
        pm_refuse("fork: no memory for the child's copy of the heap");
    pm_private_forget(); // nobody else writes the twin
    pm_heap_remove();
    pm_heap_release();
    pm_twin_part();
}

static void after_in_child(void) {
    struct pm_gate *gate = fork_state.gate;
    pm_runtime_each_lock(pm_lock_reset);
    if (fork_state.plan != NOTHING && !gate)
        pm_refuse("fork: no memory for the child's copy of the heap");
    follow = fork_state.plan == TAKE ? FORK_OF_TAKER : NO_MORE;
    struct pm_gate_hold hold = {0};
    if (gate && fork_state.plan != TAKE)
        hold = take(gate);
    switch (fork_state.plan) {
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
    case TAKE_TWIN:
        child_take_twin(gate, hold);
        break;
    }
    pm_fork_guard(true);
    pm_tcache_orphans(pm_tcache);
    if (fork_state.plan != NOTHING)
        unblock_signals();
    errno = fork_state.saved_errno;
}

// glibc undoes pthread_atfork() when our destructors have run, but those of others may still fork. This library
// is never unloaded (-z nodelete).
#ifdef __GLIBC__
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
#else
#define __register_atfork(prepare, parent, child, object) pthread_atfork(prepare, parent, child)
#endif

void pm_fork_init(void) { __register_atfork(prepare, after_in_parent, after_in_child, NULL); }

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "world.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/decay.h"
#include "base/lock.h"
#include "base/os.h"
#include "media/heap.h"
#include "threads/calls.h"
#include "threads/hold.h"
#include "threads/tasks.h"
#include "threads/threads.h"

#define PATIENCE_MS 5000
#define THREADS 65536u

// What is known of the threads: from their signal handlers, from the calls that they sleep in, or
// from the kernel. The first is the thread that looks.
static struct known {
    _Atomic unsigned count;
    struct {
        pid_t id;
        uintptr_t stack;     // its stack pointer
        const void *context; // the registers of a thread that was interrupted; else NULL
    } thread[THREADS];
    uintptr_t stacks[THREADS];
} * known;

// ---- threads ------------------------------------------------------------------------------------

static void know(pid_t id, uintptr_t stack, const void *context) {
    unsigned i = atomic_fetch_add_explicit(&known->count, 1, memory_order_relaxed);
    if (i >= THREADS) // then its whole stack is a root
        return;
    known->thread[i].id = id;
    known->thread[i].stack = stack;
    known->thread[i].context = context;
}

static unsigned known_count(void) {
    unsigned count = atomic_load_explicit(&known->count, memory_order_acquire);
    return count < THREADS ? count : THREADS;
}

// In the handler of a thread that is held.
static void note(const void *context) {
    const ucontext_t *u = context;
    know((pid_t)syscall(SYS_gettid), (uintptr_t)u->uc_mcontext.gregs[REG_RSP], context);
}

// A thread that waits in the kernel for something else, such as the end of a vfork(). The file has
// the stack pointer as the last word but one. 0: it cannot be found out.
static uintptr_t stack_in_kernel(pid_t id) {
    char text[256];
    bool gone;
    if (!pm_task_read(id, "syscall", text, sizeof text, &gone))
        return 0;
    char *last = strrchr(text, ' ');
    if (!last)
        return 0;
    *last = '\0';
    last = strrchr(text, ' ');
    return last ? strtoull(last + 1, NULL, 16) : 0;
}

static void find_sleeper(pid_t id, void *unused) {
    (void)unused;
    for (unsigned i = 0, count = known_count(); i < count; i++)
        if (known->thread[i].id == id)
            return;
    const void *frame = pm_calls_frame(id);
    uintptr_t stack = frame ? (uintptr_t)frame : stack_in_kernel(id);
    if (stack)
        know(id, stack, NULL);
}

// ---- roots --------------------------------------------------------------------------------------

// The kernel's layout of the registers that a signal saves (uapi/asm/sigcontext.h).
#define FX_BYTES 512u
#define FX_RESERVED 464u // then a magic number, three words on the size of all that follows
#define FX_MAGIC 0x46505853u

static void root_registers(const void *context, pm_memory_fn *root, void *arg) {
    const ucontext_t *u = context;
    const char *state = (const char *)u->uc_mcontext.fpregs;
    uint32_t extended[5];
    root(u->uc_mcontext.gregs, sizeof u->uc_mcontext.gregs, arg);
    if (!state)
        return;
    memcpy(extended, state + FX_RESERVED, sizeof extended);
    root(state, extended[0] == FX_MAGIC ? extended[4] : FX_BYTES, arg);
}

int pm_world_memory(const uintptr_t *stacks, unsigned count, pm_memory_fn *root, void *arg,
                    struct pm_error *err) {
    for (unsigned i = 0; pm_heap_is_held() && i < PM_ROOT_SLOTS; i++) {
        uint64_t slot = pm_heap_slot(i);
        root(&slot, sizeof slot, arg);
    }
    return pm_process_memory(stacks, count, root, arg, err);
}

int pm_world_roots(pm_memory_fn *root, void *arg, struct pm_error *err) {
    unsigned count = known_count();
    for (unsigned i = 0; i < count; i++) {
        // A stack may be a block of the heap, as a coroutine's. Then the whole block is a root.
        known->stacks[i] = known->thread[i].stack;
        root(&known->stacks[i], sizeof known->stacks[i], arg);
        if (known->thread[i].context)
            root_registers(known->thread[i].context, root, arg);
    }
    return pm_world_memory(known->stacks, count, root, arg, err);
}

// ---- hold ---------------------------------------------------------------------------------------

// A commit by time waits for its turn meanwhile, as long as that takes. If it waited for this
// thread, it would give up.
static int work_alone(pm_world_fn *work, void *arg, struct pm_error *err) {
    uint64_t all = ~0ull, before;
    bool turn = pm_calls_recorded && !pm_threads_holder() && pm_threads_keep_off();
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    pm_lock(&pm_age_lock);
    int status = work(arg, err);
    pm_unlock(&pm_age_lock);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    if (turn)
        pm_threads_let_on();
    return status;
}

static int work_among_others(pm_world_fn *work, void *arg, struct pm_error *err) {
    if (!pm_hold_all_and(PATIENCE_MS, note))
        return pm_fail(err, PM_OPERATIONAL, "a thread does not stop");
    pm_tasks_each_other(find_sleeper, NULL);
    int status = work(arg, err);
    pm_release_all();
    return status;
}

// The process whose turn it is; 0: none. A child does not wait for a thread that only its parent
// has.
static _Atomic pid_t busy;

// Sleeps outside of this library, so that whose turn it is can hold this thread.
static void wait_for_turn(void) {
    const struct timespec pause = {0, 200000};
    pid_t own = getpid(), other = 0;
    while (!atomic_compare_exchange_strong_explicit(&busy, &other, own, memory_order_acquire,
                                                    memory_order_relaxed) &&
           other == own) {
        syscall(SYS_nanosleep, &pause, NULL);
        other = 0;
    }
    atomic_store_explicit(&busy, own, memory_order_relaxed);
}

static int hold_from(uintptr_t stack, pm_world_fn *work, void *arg, struct pm_error *err) {
    struct known *mine = pm_os_reserve(sizeof *known);
    if (!mine)
        return pm_fail(err, PM_OPERATIONAL, "no memory: %s", pm_strerror(errno));
    wait_for_turn();
    known = mine;
    know((pid_t)syscall(SYS_gettid), stack, NULL);
    int status = (pm_threads_none() ? work_alone : work_among_others)(work, arg, err);
    atomic_store_explicit(&busy, 0, memory_order_release);
    munmap(mine, sizeof *known);
    return status;
}

// Has a small frame: the remains of old frames below it are not looked at. It saves the registers
// that callers may still use.
__attribute__((noinline)) int pm_world_hold(pm_world_fn *work, void *arg, struct pm_error *err) {
    uintptr_t preserved[6], stack;
    __asm__ volatile("movq %%rbx, 0(%1)\n\tmovq %%rbp, 8(%1)\n\tmovq %%r12, 16(%1)\n\t"
                     "movq %%r13, 24(%1)\n\tmovq %%r14, 32(%1)\n\tmovq %%r15, 40(%1)\n\t"
                     "movq %%rsp, %0"
                     : "=&r"(stack)
                     : "r"(preserved)
                     : "memory");
    int status = hold_from(stack, work, arg, err);
    __asm__ volatile("" : : "r"(preserved) : "memory"); // not a tail call: the frame stays
    return status;
}

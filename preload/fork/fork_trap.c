// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork_trap.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "aside.h"
#include "base/bare_thread.h"
#include "base/library.h"

// Younger than the oldest headers that this is built with.
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_OFF 0
#define PR_SYS_DISPATCH_ON 1
#endif
#define FILTER_ALLOW 0
#define FILTER_BLOCK 1
#define CODE_USER_DISPATCH 2
#define SYSCALL_BYTES 2 // of the instruction

#define MASK_BYTES sizeof(uint64_t)
#define SIGSYS_BIT ((uint64_t)1 << (SIGSYS - 1))
#define FLAG_RESTORER 0x04000000ul

// As the kernel has it. libc would put a function of its own in the place of `restorer`, whose
// system call would be trapped.
struct action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

bool pm_fork_trap_forbidden;

static struct {
    long (*make)(void *call);
    struct action before;
    stack_t stack; // the thread's own
    bool has_stack;
    pid_t thread; // whose trap it is
    bool late;    // a signal has come that is not ours; it comes again
    siginfo_t signal;
} trap;
// Read by the kernel at each system call of the thread.
static volatile char selector;

__attribute__((visibility("hidden"))) void pm_fork_trap_restorer(void);
__asm__(".text\n"
        ".type pm_fork_trap_restorer, @function\n"
        ".hidden pm_fork_trap_restorer\n"
        ".globl pm_fork_trap_restorer\n"
        "pm_fork_trap_restorer:\n"
        "    movq $15, %rax\n"
        "    syscall\n"
        ".size pm_fork_trap_restorer, . - pm_fork_trap_restorer\n");
_Static_assert(SYS_rt_sigreturn == 15, "the number above");

static long set_action(const struct action *to, struct action *before) {
    return pm_bare_call(SYS_rt_sigaction, SIGSYS, (long)to, (long)before, MASK_BYTES);
}

static void stop(void) {
    selector = FILTER_ALLOW;
    pm_bare_call6(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0, 0);
}

// ---- the handler --------------------------------------------------------------------------------

// The mask is the one that the end of the handler sets.
static long change_mask(const struct pm_fork_call *call, uint64_t *mask) {
    const long *a = call->argument;
    const uint64_t *set = (const uint64_t *)a[1];
    uint64_t before = *mask, given = set ? *set : 0;
    if (a[3] != MASK_BYTES || (set && (a[0] < SIG_BLOCK || a[0] > SIG_SETMASK)))
        return -EINVAL;
    if (set)
        *mask = a[0] == SIG_BLOCK ? before | given : a[0] == SIG_UNBLOCK ? before & ~given : given;
    *mask &= ~SIGSYS_BIT; // blocked, it would end the process
    if (a[2])
        *(uint64_t *)a[2] = before;
    return 0;
}

// Its result. With `repeats` the program makes the call itself, and nothing is trapped any more.
static long answer(struct pm_fork_call *call, uint64_t *mask, bool *repeats) {
    const long *a = call->argument;
    if (pm_fork_call_forks(call)) {
        stop();
        return pm_aside_call(trap.make, call);
    }
    switch (call->number) {
    case SYS_clone: // a thread, or a process that shares memory
    case PM_NR_CLONE3:
    case SYS_vfork:
        stop();
        *repeats = true;
        return call->number;
    }
    long result = call->number == SYS_rt_sigprocmask
                      ? change_mask(call, mask)
                      : pm_bare_call6(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
    selector = FILTER_BLOCK;
    return result;
}

// For SIGSYS the program has the kernel's action: it ends.
static void not_ours(const siginfo_t *info, bool here) {
    struct action none = {.handler = (void *)SIG_DFL};
    if (here) {
        trap.late = true;
        trap.signal = *info;
        return;
    }
    set_action(&none, NULL);
    pm_bare_call(SYS_tgkill, pm_bare_call(SYS_getpid, 0, 0, 0, 0),
                 pm_bare_call(SYS_gettid, 0, 0, 0, 0), SIGSYS, 0);
}

static void on_call(int number, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    greg_t *reg = at->uc_mcontext.gregs;
    bool repeats = false;
    (void)number;
    if (info->si_code != CODE_USER_DISPATCH) {
        not_ours(info, pm_bare_call(SYS_gettid, 0, 0, 0, 0) == trap.thread);
        return;
    }
    selector = FILTER_ALLOW;
    struct pm_fork_call call = {
        reg[REG_RAX],
        {reg[REG_RDI], reg[REG_RSI], reg[REG_RDX], reg[REG_R10], reg[REG_R8], reg[REG_R9]}};
    reg[REG_RAX] = answer(&call, (uint64_t *)(void *)&at->uc_sigmask, &repeats);
    if (repeats)
        reg[REG_RIP] -= SYSCALL_BYTES;
}

// ---- set and clear ------------------------------------------------------------------------------

// A thread that runs on its alternate stack keeps that one.
static void set_stack(void) {
    size_t size;
    void *frame = pm_aside_frame(&size);
    stack_t ours = {.ss_sp = frame, .ss_size = size};
    trap.has_stack = pm_bare_call(SYS_sigaltstack, (long)&ours, (long)&trap.stack, 0, 0) == 0;
}

bool pm_fork_trap_set(long (*make)(void *call)) {
    struct action ours = {(void *)on_call, SA_SIGINFO | SA_ONSTACK | FLAG_RESTORER,
                          pm_fork_trap_restorer, ~0ull};
    uint64_t bit = SIGSYS_BIT;
    if (pm_fork_trap_forbidden || set_action(NULL, &trap.before) != 0 ||
        trap.before.handler != (void *)SIG_DFL)
        return false;
    selector = FILTER_ALLOW;
    if (pm_bare_call6(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON,
                      (long)__ehdr_start, etext - __ehdr_start, (long)&selector, 0) != 0)
        return false;
    trap.make = make;
    trap.late = false;
    trap.thread = (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    set_stack();
    set_action(&ours, NULL);
    pm_bare_call(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&bit, 0, MASK_BYTES);
    selector = FILTER_BLOCK;
    return true;
}

void pm_fork_trap_clear(void) {
    uint64_t bit = SIGSYS_BIT;
    pid_t self = (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    stop();
    pm_bare_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&bit, 0, MASK_BYTES);
    set_action(&trap.before, NULL);
    if (trap.has_stack)
        pm_bare_call(SYS_sigaltstack, (long)&trap.stack, 0, 0, 0);
    if (trap.late && self == trap.thread) // not in the child
        pm_bare_call(SYS_rt_tgsigqueueinfo, pm_bare_call(SYS_getpid, 0, 0, 0, 0), self, SIGSYS,
                     (long)&trap.signal);
}

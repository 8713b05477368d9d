// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bare_child.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "bare_thread.h"

static _Atomic bool forbidden;

void pm_bare_child_forbid(void) { atomic_store(&forbidden, true); }

struct child {
    long flags;
    long (*run)(void *);
    void *tls;
    _Atomic uint32_t *alive;
};

// The child finds the function and its argument in registers that clone() does not use.
PM_BARE static long start(const struct child *c, void *arg, void *stack_top) {
    register _Atomic uint32_t *alive __asm__("r10") = c->alive;
    register void *tls __asm__("r8") = c->tls;
    register long (*function)(void *) __asm__("r9") = c->run;
    register void *argument __asm__("r12") = arg;
    long result;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "movq %%r12, %%rdi\n\t"
                     "callq *%%r9\n\t"
                     "movl %%eax, %%edi\n\t"
                     "movl %[leave], %%eax\n\t"
                     "syscall\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"(c->flags | CLONE_VM), "S"(stack_top), "d"(0l),
                       "r"(alive), "r"(tls), "r"(function), "r"(argument), [leave] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return result;
}

PM_BARE static long make(const struct child *c, void *arg, void *stack_top) {
    uint64_t all = ~0ull, mask; // also libc's internal signals, which libc's functions leave out
    if (atomic_load_explicit(&forbidden, memory_order_relaxed))
        return -EPERM;
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&mask, sizeof mask);
    long id = start(c, arg, (void *)((uintptr_t)stack_top & ~(uintptr_t)15));
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
    return id;
}

PM_BARE long pm_bare_child(long (*run)(void *), void *arg, void *stack_top) {
    const struct child c = {CLONE_VFORK, run, NULL, NULL};
    return make(&c, arg, stack_top);
}

PM_BARE long pm_bare_child_beside(long (*run)(void *), void *stack_top, void *tls,
                                  _Atomic uint32_t *alive) {
    const struct child c = {CLONE_SETTLS | CLONE_CHILD_CLEARTID, run, tls, alive};
    return make(&c, NULL, stack_top);
}

PM_BARE int pm_bare_child_status(long id) {
    int status = -1;
    long got;
    do
        got = pm_bare_call(SYS_wait4, id, (long)&status, __WALL, 0);
    while (got == -EINTR);
    return got == id && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bare_thread.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

// The new thread finds the function in a register that clone() does not use.
static long start(long flags, void (*run)(void), void *stack_top, void *own, _Atomic uint32_t *id) {
    flags |= CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
             CLONE_CHILD_CLEARTID;
    register _Atomic uint32_t *tid __asm__("r10") = id;
    register void *tls __asm__("r8") = own;
    register void (*function)(void) __asm__("r9") = run;
    long result;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "callq *%%r9\n\t"
                     "movl %[leave], %%eax\n\t"
                     "xorl %%edi, %%edi\n\t"
                     "syscall\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"(flags), "S"(stack_top), "d"(id), "r"(tid),
                       "r"(tls), "r"(function), [leave] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return result;
}

static long start_deaf(long flags, void (*run)(void), void *stack_top, void *tls,
                       _Atomic uint32_t *tid) {
    uint64_t all = ~0ull, mask; // also libc's internal signals, which libc's functions leave out
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&mask, sizeof mask);
    long id = start(flags, run, stack_top, tls, tid);
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
    return id;
}

long pm_bare_thread(void (*run)(void), void *stack_top, void *tls, _Atomic uint32_t *tid) {
    return start_deaf(CLONE_FILES | (tls ? CLONE_SETTLS : 0), run, stack_top, tls, tid);
}

long pm_bare_thread_apart(void (*run)(void), void *stack_top, _Atomic uint32_t *tid) {
    return start_deaf(0, run, stack_top, NULL, tid);
}

#define LEAVE_TRIES 10000
#define LEAVE_PAUSE_NS 100000

// Sleeps, because the thread may need this core to go on. Bounded, because another thread of the
// process may have been given the same id.
void pm_bare_thread_leave(long id) {
    const struct timespec pause = {0, LEAVE_PAUSE_NS};
    long pid = pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    for (int i = 0; i < LEAVE_TRIES && pm_bare_call(SYS_tgkill, pid, id, 0, 0) == 0; i++)
        pm_bare_call(SYS_nanosleep, (long)&pause, 0, 0, 0);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc's clone() where it makes a process with memory of its own, and _Fork(), which runs none of
// the program's handlers. Such a child gets the heap as a forked child does. raw_calls.c has the
// same of the system calls by their numbers. The stack that the program names for the child may lie
// on the heap, so the child cannot use it before the handlers of fork.h have run. The child runs
// them on its copy of the parent's stack, as after fork(), and then changes to its own stack:
//
//   parent   clone(fn, stack)   before   SYS_clone without a stack   after, in the parent
//   child                                     \   after, in the child   on `stack`: exit(fn(arg))
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "commit/triggers.h"
#include "export.h"
#include "fork/fork.h"
#include "next.h"
#include "threads/calls.h"

typedef int child_fn(void *);

static _Noreturn void run_on(void *stack, child_fn *fn, void *arg) {
    uintptr_t top = (uintptr_t)stack & ~(uintptr_t)15;
    __asm__ volatile("mov %[top], %%rsp\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "call *%[fn]\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[exit], %%eax\n\t"
                     "syscall\n\t"
                     "hlt"
                     :
                     : [top] "d"(top), [fn] "a"(fn), "D"(arg), [exit] "i"(SYS_exit_group)
                     : "memory");
    __builtin_unreachable();
}

typedef int clone_fn(child_fn *, void *, int, void *, ...);

EXPORT int clone(child_fn *fn, void *stack, int flags, void *arg, ...);
EXPORT int clone(child_fn *fn, void *stack, int flags, void *arg, ...) {
    va_list more; // `flags` say which are there; the others are whatever the registers have
    va_start(more, arg);
    pid_t *parent_tid = va_arg(more, pid_t *);
    void *tls = va_arg(more, void *);
    pid_t *child_tid = va_arg(more, pid_t *);
    va_end(more);
    if (fn && stack && !(flags & CLONE_VM) && pm_fork_serves()) {
        struct pm_fork_call call = {SYS_clone,
                                    {flags, 0, (long)parent_tid, (long)child_tid, (long)tls, 0}};
        long pid = pm_fork_call(&call);
        if (pid == 0)
            run_on(stack, fn, arg);
        if (pid > 0)
            return (int)pid;
        errno = (int)-pid;
        return -1;
    }
    static _Atomic(void *) known;
    clone_fn *real;
    *(void **)&real = pm_next(&known, "clone");
    if (!(flags & CLONE_THREAD))
        pm_trigger_tells();
    if ((flags & (CLONE_VM | CLONE_SETTLS)) == CLONE_VM)
        pm_calls_share();
    return real ? real(fn, stack, flags, arg, parent_tid, tls, child_tid) : -1;
}

typedef pid_t bare_fn(void);

// Beside the headers' declaration, which older ones lack.
EXPORT pid_t pm_names_bare_fork(void) __asm__("_Fork");
EXPORT pid_t pm_names_bare_fork(void) {
    static _Atomic(void *) known;
    bare_fn *real;
    *(void **)&real = pm_next(&known, "_Fork");
    if (!real)
        return -1;
    if (pm_fork_serves())
        return pm_fork_bare(real);
    pm_trigger_tells();
    return real();
}

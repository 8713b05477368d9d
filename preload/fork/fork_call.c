// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork_call.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"

// The words of clone3's struct.
#define FLAGS 0
#define TID 2
#define CLONE3_STACK 5
#define TLS 7
#define LEAST_BYTES 64

unsigned long pm_fork_call_flags(const struct pm_fork_call *call) {
    const long *a = call->argument;
    return call->number == SYS_clone      ? (unsigned long)a[0]
           : call->number == PM_NR_CLONE3 ? ((const uint64_t *)a[0])[FLAGS]
                                          : 0;
}

// Whether the struct can be read. It is the kernel that says EFAULT. This call copies a mask from
// there and then refuses to do what no constant stands for.
static bool is_there(long at, long len) {
    const long nothing = 99, first = at, last = at + len - 8;
    return pm_bare_call(SYS_rt_sigprocmask, nothing, first, 0, 8) != -EFAULT &&
           pm_bare_call(SYS_rt_sigprocmask, nothing, last, 0, 8) != -EFAULT;
}

static bool is_readable(const struct pm_fork_call *call) {
    const long *a = call->argument;
    return call->number != PM_NR_CLONE3 ||
           (a[0] && a[1] >= LEAST_BYTES && a[1] <= PM_CLONE3_WORDS * 8 && is_there(a[0], a[1]));
}

bool pm_fork_call_forks(const struct pm_fork_call *call) {
    const long *a = call->argument;
    switch (call->number) {
    case SYS_fork:
        return true;
    case SYS_clone:
        return !(a[0] & CLONE_VM) && a[1] == 0;
    case PM_NR_CLONE3:
        return is_readable(call) && !(pm_fork_call_flags(call) & CLONE_VM) &&
               ((const uint64_t *)a[0])[CLONE3_STACK] == 0;
    }
    return false;
}

bool pm_fork_call_shares(const struct pm_fork_call *call) {
    unsigned long flags = is_readable(call) ? pm_fork_call_flags(call) : 0;
    return call->number == SYS_vfork || (flags & (CLONE_VM | CLONE_SETTLS)) == CLONE_VM;
}

void pm_fork_call_adapt(struct pm_fork_making *m, bool suspends) {
    long *a = m->call.argument;
    unsigned long flags = pm_fork_call_flags(&m->call);
    unsigned long ours = CLONE_CHILD_SETTID | CLONE_SETTLS | (suspends ? 0 : CLONE_VFORK);
    bool three = m->call.number == PM_NR_CLONE3;
    if (three) {
        memcpy(m->clone3, (const void *)a[0], (size_t)a[1]);
        a[0] = (long)m->clone3;
    }
    if (flags & CLONE_CHILD_SETTID)
        m->tid = (pid_t *)(three ? (long)m->clone3[TID] : a[3]);
    if (flags & CLONE_SETTLS)
        m->storage = (void *)(three ? (long)m->clone3[TLS] : a[4]);
    if (three)
        m->clone3[FLAGS] &= ~(uint64_t)ours;
    else if (m->call.number == SYS_clone)
        a[0] &= ~(long)ours;
}

long pm_fork_call_make(const struct pm_fork_making *m) {
    const long *a = m->call.argument;
    return pm_bare_call6(m->call.number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void pm_fork_call_store_tid(const struct pm_fork_making *m) {
    if (m->tid)
        *m->tid = (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
}

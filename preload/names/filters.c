// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How a program installs a seccomp filter: prctl(), and the system calls by their numbers
// (raw_calls.c), as libseccomp does.
#include "filters.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "export.h"
#include "next.h"
#include "process/sandbox.h"

#ifndef SECCOMP_FILTER_FLAG_NEW_LISTENER
#define SECCOMP_FILTER_FLAG_NEW_LISTENER (1ul << 3)
#endif

// The kernel gets anything that is no filter, and refuses it.
static const struct sock_fprog *filter_at(unsigned long at) {
    const struct sock_fprog *filter = (const struct sock_fprog *)at;
    return filter && filter->filter && filter->len && filter->len <= BPF_MAXINSNS ? filter : NULL;
}

bool pm_filters_before(struct pm_sandbox *s, long number, const long *a) {
    unsigned long at = (unsigned long)a[2], flags = number == SYS_seccomp ? (unsigned long)a[1] : 0;
    bool strict = number == SYS_seccomp ? a[0] == SECCOMP_SET_MODE_STRICT && !flags && !at
                                        : a[0] == PR_SET_SECCOMP && a[1] == SECCOMP_MODE_STRICT;
    bool filters = number == SYS_seccomp ? a[0] == SECCOMP_SET_MODE_FILTER
                                         : a[0] == PR_SET_SECCOMP && a[1] == SECCOMP_MODE_FILTER;
    const struct sock_fprog *filter = filters ? filter_at(at) : NULL;
    if (!strict && !filter)
        return false;
    pm_sandbox_before(s, filter, flags & SECCOMP_FILTER_FLAG_TSYNC);
    return true;
}

// With TSYNC a positive number names a thread which could not get the filter.
void pm_filters_after(const struct pm_sandbox *s, long number, const long *a, long result) {
    bool all = number == SYS_seccomp && a[1] & SECCOMP_FILTER_FLAG_TSYNC &&
               !((unsigned long)a[1] & SECCOMP_FILTER_FLAG_NEW_LISTENER);
    pm_sandbox_after(s, result < 0 || (all && result > 0));
}

typedef int prctl_fn(int, ...);

EXPORT int pm_prctl(int option, ...) __asm__("prctl");
EXPORT int pm_prctl(int option, ...) {
    static _Atomic(void *) known;
    prctl_fn *real;
    va_list more; // whatever the registers have, where the caller gave fewer
    va_start(more, option);
    long a[] = {option, va_arg(more, long), va_arg(more, long), va_arg(more, long),
                va_arg(more, long)};
    va_end(more);
    *(void **)&real = pm_next(&known, "prctl");
    if (!real)
        return -1;
    struct pm_sandbox s;
    bool filters = option == PR_SET_SECCOMP && pm_filters_before(&s, SYS_prctl, a);
    int result = real(option, a[1], a[2], a[3], a[4]);
    if (filters)
        pm_filters_after(&s, SYS_prctl, a, result);
    return result;
}

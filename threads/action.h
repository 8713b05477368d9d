// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a signal does, asked of the kernel.
#ifndef PM_ACTION_H
#define PM_ACTION_H

#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"

// The kernel's own struct, for direct system calls: libc's sigaction() refuses the signals that
// libc uses itself.
struct pm_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
#define PM_SA_RESTORER 0x04000000

// Negative error.
static inline long pm_action_set(int number, const struct pm_action *now, struct pm_action *old) {
    return pm_bare_call(SYS_rt_sigaction, number, (long)now, (long)old, sizeof now->mask);
}

#endif

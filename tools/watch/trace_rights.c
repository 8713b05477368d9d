// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trace_rights.h"

#include <stdio.h>

// Whom Yama lets trace others of the same user. 0: all. 1: parents their children. 2: who has
// CAP_SYS_PTRACE, which 1 allows, too. 3: nobody. -1: there is no Yama in this kernel.
static int yama_scope(void) {
    int scope = -1;
    FILE *in = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (in && fscanf(in, "%d", &scope) != 1)
        scope = -1;
    if (in)
        fclose(in);
    return scope;
}

int trace_refused(pid_t pid, struct pm_error *err) {
    int scope = yama_scope();
    if (scope >= 3)
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d cannot be held: the sysctl kernel.yama.ptrace_scope is %d, so "
                       "nobody may trace any process until this machine starts anew; try again "
                       "when the program has ended",
                       (int)pid, scope);
    if (scope >= 1)
        return pm_fail(
            err, PM_OPERATIONAL,
            "process %d cannot be held: the sysctl kernel.yama.ptrace_scope is %d; set "
            "it to 0, or run %s with CAP_SYS_PTRACE (setpriv --ambient-caps +sys_ptrace)",
            (int)pid, scope, pm_message_prefix);
    return pm_fail(err, PM_OPERATIONAL,
                   "process %d cannot be held: the kernel does not let this user trace it; run "
                   "%s with CAP_SYS_PTRACE (setpriv --ambient-caps +sys_ptrace), or end the "
                   "program",
                   (int)pid, pm_message_prefix);
}

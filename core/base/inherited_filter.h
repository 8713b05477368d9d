// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A seccomp filter that the process was started with: a service manager's, a container's. Nobody
// can read it (one that the program itself installs can be read, preload/process/sandbox.h), and
// some end the process for a call that they do not expect. So a call that can be done without is
// first made by a child, which may die of it. Filters of containers fail such calls instead.
#ifndef PM_INHERITED_FILTER_H
#define PM_INHERITED_FILTER_H

#include <stdbool.h>

// Calls that PMAlloc may make, that programs seldom make, and that can be done without.
enum pm_inherited_call {
    PM_INHERITED_MINCORE, // not in systemd's @system-service
    PM_INHERITED_PROCESS_VM_READV,
    PM_INHERITED_PROCESS_MADVISE,
    PM_INHERITED_KCMP,
    PM_INHERITED_USERFAULTFD,
    PM_INHERITED_RT_TGSIGQUEUEINFO,
    PM_INHERITED_STATX,
    PM_INHERITED_CALLS,
};

// Whether such a filter would end the process for the call, or that cannot be told. The first
// question reads /proc/self/status; under a filter it also makes a child for each of the calls,
// which nobody but its maker can wait for. Thread-safe; keeps errno.
bool pm_inherited_ends(enum pm_inherited_call call);
// The program is about to install a filter of its own, which may forbid to find out: so that is
// done now.
void pm_inherited_before_another(void);
// The program's own filter would end the process for the call.
void pm_inherited_another_ends(enum pm_inherited_call call);

#endif

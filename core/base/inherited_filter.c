// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "inherited_filter.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "bare_thread.h"
#include "proc.h"

static const short number_of[PM_INHERITED_CALLS] = {
    [PM_INHERITED_MINCORE] = SYS_mincore,
    [PM_INHERITED_PROCESS_VM_READV] = SYS_process_vm_readv,
    [PM_INHERITED_PROCESS_MADVISE] = SYS_process_madvise,
    [PM_INHERITED_KCMP] = SYS_kcmp,
    [PM_INHERITED_USERFAULTFD] = SYS_userfaultfd,
    [PM_INHERITED_RT_TGSIGQUEUEINFO] = SYS_rt_tgsigqueueinfo,
    [PM_INHERITED_STATX] = SYS_statx,
};

// Two threads that find out at once find the same. Sequentially consistent: `known` is stored last.
static _Atomic bool known;
static _Atomic bool ends[PM_INHERITED_CALLS];

static bool has_filter(void) {
    char text[2048];
    pm_proc_text("self/status", text, sizeof text);
    return strstr(text, "\nSeccomp:\t") && !strstr(text, "\nSeccomp:\t0");
}

// A copy of this process makes the call, with zeroes, and ends. It leaves no core, and sends no
// signal: other waits of the program do not see it.
static bool child_dies(long number) {
    int status = -1;
    long child = pm_bare_call(SYS_clone, 0, 0, 0, 0);
    if (child == 0) {
        pm_bare_call(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0);
        pm_bare_call6(number, 0, 0, 0, 0, 0, 0);
        pm_bare_call(SYS_exit_group, 0, 0, 0, 0);
    }
    long got;
    do
        got = child > 0 ? pm_bare_call(SYS_wait4, child, (long)&status, __WALL, 0) : -1;
    while (got == -EINTR);
    return got != child || status != 0;
}

static void find_out(void) {
    bool filter = has_filter();
    for (unsigned i = 0; filter && i < PM_INHERITED_CALLS; i++)
        if (child_dies(number_of[i]))
            atomic_store(&ends[i], true);
    atomic_store(&known, true);
}

bool pm_inherited_ends(enum pm_inherited_call call) {
    int saved = errno;
    if (!atomic_load(&known))
        find_out();
    errno = saved;
    return atomic_load(&ends[call]);
}

void pm_inherited_before_another(void) { pm_inherited_ends(PM_INHERITED_MINCORE); }

void pm_inherited_another_ends(enum pm_inherited_call call) { atomic_store(&ends[call], true); }

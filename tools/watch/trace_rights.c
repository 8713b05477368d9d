// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trace_rights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "patience.h"
#include "tools/common/program_status.h"
#include "tracee.h"

// How long another tool that traces it could have run.
enum { PATIENCE_MS = 1000, PATIENCE_MAX_MS = 30000 };

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

static bool refused(pid_t pid, struct pm_error *err) {
    int scope = yama_scope();
    if (scope >= 3)
        pm_fail(err, PM_OPERATIONAL,
                "process %d cannot be held: the sysctl kernel.yama.ptrace_scope is %d, so nobody "
                "may trace any process until this machine starts anew; try again when the program "
                "has ended",
                (int)pid, scope);
    else if (scope >= 1)
        pm_fail(err, PM_OPERATIONAL,
                "process %d cannot be held: the sysctl kernel.yama.ptrace_scope is %d; set it to "
                "0, or run %s with CAP_SYS_PTRACE (setpriv --ambient-caps +sys_ptrace)",
                (int)pid, scope, pm_message_prefix);
    else
        pm_fail(err, PM_OPERATIONAL,
                "process %d cannot be held: the kernel does not let this user trace it; run %s "
                "with CAP_SYS_PTRACE (setpriv --ambient-caps +sys_ptrace), or end the program",
                (int)pid, pm_message_prefix);
    return false;
}

static int tracer_of_thread(pid_t pid, pid_t id) {
    char text[4096];
    return program_text(pid, id, "status", text, sizeof text)
               ? (int)program_number(text, "TracerPid", 0)
               : 0; // it is gone, which is found out elsewhere
}

// A guardian (guardian.h) of another tool, which ends soon, or whoever has ended since.
static bool is_tool(int tracer) {
    char text[64];
    return tracer &&
           (!program_text(tracer, tracer, "comm", text, sizeof text) ||
            strncmp(text, "pmalloc-backup", 14) == 0 || strncmp(text, "pmalloc-info", 12) == 0);
}

bool trace_tool_has(pid_t pid, pid_t thread) {
    int tracer = tracer_of_thread(pid, thread);
    return !tracer || is_tool(tracer);
}

// Who else traces the process; 0: nobody.
static int tracer_of(pid_t pid) {
    const uint64_t end = patience_now_ns() + PATIENCE_MAX_MS * 1000000ull;
    struct patience patience = {0};
    int own = (int)syscall(SYS_gettid), tracer = tracer_of_thread(pid, pid);
    for (uint64_t spent = 0; tracer != own && is_tool(tracer) && spent < PATIENCE_MS * 1000000ull &&
                             patience_now_ns() < end;) {
        tracee_nap(1000000);
        spent += patience_chance(&patience, tracer, tracer);
        tracer = tracer_of_thread(pid, pid);
    }
    return tracer == own ? 0 : tracer;
}

bool trace_allowed(pid_t pid, struct pm_error *err) {
    char text[4096];
    int tracer = tracer_of(pid);
    if (tracer) {
        pm_fail(err, PM_OPERATIONAL,
                "process %d cannot be held: process %d traces it (a debugger, strace, or another "
                "%s); end that first",
                (int)pid, tracer, pm_message_prefix);
        return false;
    }
    if (program_text(pid, pid, "syscall", text, sizeof text) || (errno != EACCES && errno != EPERM))
        return true;
    return refused(pid, err);
}

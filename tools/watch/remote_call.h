// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A system call in another process, made by one of its threads without a trace: the thread is
// stopped by ptrace(2), makes the call, and goes on where it was. A call in which it was asleep
// begins again with the time that is left. Threads in calls of which that is not true are left
// alone.
#ifndef PM_TOOLS_REMOTE_CALL_H
#define PM_TOOLS_REMOTE_CALL_H

#include <stdbool.h>
#include <sys/types.h>

// userfaultfd(flags) in the process. Returns the descriptor, which belongs to this process and no
// longer to the other one; -1: no thread can make the call, or the kernel refuses it.
int remote_userfaultfd(pid_t pid, long flags);

#endif

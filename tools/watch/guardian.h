// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Amid a call that a tool makes in another process, a thread there has registers that are not its
// own. Would the process that traces it die then, the kernel would let the thread go on with these.
// So a process of its own traces: no signal to the tool or to its group reaches it, and it lives as
// long as the work takes.
#ifndef PM_TOOLS_GUARDIAN_H
#define PM_TOOLS_GUARDIAN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct guardian {
    pid_t pid;
    int end; // of a socket: the guardian has the other end
};

// Starts one that calls work(its end, arg) and ends. It has no other descriptors of the tool's: the
// tool's locks must end with the tool. False: there is none, with errno.
bool guardian_begin(struct guardian *g, void work(int end, void *arg), void *arg);
// Waits for its end.
void guardian_end(struct guardian *g);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One thread of another process under ptrace(2): asked to stop, awaited, let go again where it was.
// A call in which it was asleep begins again, most with the time that is left (signal(7),
// "Interruption of system calls and library functions by stop signals"); one that would return
// EINTR begins again with all of its time. A signal at which it has stopped is kept for it.
//
// If the thread that traces it ends, the kernel lets it go on. Only that thread may ask about it.
#ifndef PM_TOOLS_TRACEE_H
#define PM_TOOLS_TRACEE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

enum tracee_stop {
    TRACEE_RUNS,
    TRACEE_ASKED,     // it has stopped because it was asked to
    TRACEE_AT_CALL,   // before or after a system call (PTRACE_O_TRACESYSGOOD)
    TRACEE_AT_EXEC,   // it has executed a program, and has run nothing of that
    TRACEE_AT_SIGNAL, // at one, which it gets when it goes on; or with its whole process
};

struct tracee {
    pid_t id;
    bool seized; // by us
    bool dead;
    enum tracee_stop stop;
    int signal;
    struct user_regs_struct regs; // of who halts it for longer (halt.h), while it is stopped
};

// Calls fn(id) for each thread of the process, until it returns false. False: there is no such
// process.
bool tracee_each(pid_t pid, bool fn(pid_t id, void *arg), void *arg);

// Seizes it, with options of PTRACE_SEIZE, and asks it to stop. One that executes a program stops
// then, too, and has the id of the first thread of its process. Threads that we trace and that end
// meanwhile are reaped, by a timer's signal: no other thread of ours may have SIGALRM unblocked.
// False: the kernel does not let us, with errno.
bool tracee_seize(struct tracee *t, uintptr_t options);
// Asks it to stop, if it runs.
void tracee_ask(struct tracee *t);
// A look whether it has stopped, at once.
bool tracee_look(struct tracee *t);
// Whether the thread of this id is stopped, by us: one that had stopped may have been killed.
bool tracee_stands(const struct tracee *t);
// Waits for its stop, until it could have run for `patience_ms`. False: it does not stop, or is
// dead.
bool tracee_await(struct tracee *t, unsigned patience_ms);
// It goes on, by PTRACE_CONT or the like, with its signal.
void tracee_go_on(struct tracee *t, int how);
// Lets it go for good. One that has not come to its stop yet is awaited, since its call would
// return EINTR; but one that is asleep does not hear us, and the kernel lets it go when we end.
// False: it is traced still, asleep or about to end.
bool tracee_let_go(struct tracee *t, pid_t pid);

struct tracee_call {
    long number; // -1: none
    uint64_t argument[6];
};
// Whether a thread, traced or not, is off the processor, in this system call.
bool tracee_asleep(pid_t pid, pid_t id, struct tracee_call *call);
// Whether it has ended. While others of its process are stopped its end is not reported.
bool tracee_has_ended(pid_t id);
// Whether a stopped thread is in a restartable sequence. That would no longer be aborted after the
// thread was elsewhere. `memory`: /proc/PID/mem.
bool tracee_in_sequence(const struct tracee *t, int memory);
// Has a stopped thread block all signals but faults, while it runs something for us. `mask`: what
// it has blocked before, for tracee_unblock().
bool tracee_block(const struct tracee *t, uint64_t *mask);
bool tracee_unblock(const struct tracee *t, uint64_t mask);
// A short sleep of ours.
void tracee_nap(long ns);

#endif

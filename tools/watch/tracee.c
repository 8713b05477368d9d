// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tracee.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os_file.h"
#include "patience.h"
#include "tools/common/program_status.h"

// However busy the machine is, the threads that are stopped meanwhile do not wait for longer than
// LONGEST_MS, unless somebody has more patience than that.
enum { LONGEST_MS = 30000, LET_GO_MS = 2000, TICK_NS = 20000, LOOK_TICKS = 50 };

void tracee_nap(long ns) {
    const struct timespec nap = {.tv_nsec = ns};
    nanosleep(&nap, NULL);
}

// ---- what /proc says ----------------------------------------------------------------------------

struct listing {
    bool (*fn)(pid_t id, void *arg);
    void *arg;
};

static bool visit(const char *name, void *arg) {
    struct listing *l = arg;
    pid_t id = (pid_t)atoi(name);
    return id <= 0 || l->fn(id, l->arg);
}

bool tracee_each(pid_t pid, bool fn(pid_t id, void *arg), void *arg) {
    struct listing l = {fn, arg};
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool there = fd >= 0 && pm_os_each_name(fd, visit, &l);
    if (fd >= 0)
        close(fd);
    return there;
}

bool tracee_has_ended(pid_t id) {
    unsigned long flags;
    char state = program_state(id, id, &flags);
    return !state || strchr("ZX", state);
}

// The kernel prints the call only after it has waited until the thread is off its processor.
bool tracee_asleep(pid_t pid, pid_t id, struct tracee_call *call) {
    char text[256], *at = text;
    if (!program_text(pid, id, "syscall", text, sizeof text) || !strncmp(text, "running", 7))
        return false;
    call->number = strtol(at, &at, 10);
    for (unsigned i = 0; i < 6; i++)
        call->argument[i] = strtoull(at, &at, 16);
    return true;
}

// ---- calls that were interrupted ----------------------------------------------------------------

// Calls that fail with EINTR in a thread that was merely stopped: signal(7), "Interruption of
// system calls and library functions by stop signals", and io_uring_enter. Most others begin again
// by themselves. close() must not.
static bool may_begin_again(long call) {
    switch (call) {
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case 441: // epoll_pwait2
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_rt_sigtimedwait:
    case SYS_read:
    case SYS_readv:
    case SYS_write:
    case SYS_writev:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_io_getevents:
    case SYS_futex:
    case 426: // io_uring_enter
        return true;
    default:
        return false;
    }
}

// The kernel's own errors for this purpose: the call begins again unless a handler runs.
#define RESTART_IF_NO_HANDLER 514

static void mend(pid_t id) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, id, NULL, &regs) != 0 || (long)regs.rax != -EINTR ||
        !may_begin_again((long)regs.orig_rax))
        return;
    regs.rax = (unsigned long long)-RESTART_IF_NO_HANDLER;
    ptrace(PTRACE_SETREGS, id, NULL, &regs);
}

// Older headers lack it.
#define RSEQ_CONFIGURATION 0x420f

bool tracee_in_sequence(const struct tracee *t, int memory) {
    struct {
        uint64_t at;
        uint32_t size, signature, flags, pad;
    } rseq = {0};
    uint64_t section = 0;
    if (ptrace((int)RSEQ_CONFIGURATION, t->id, (void *)sizeof rseq, &rseq) <= 0 || !rseq.at)
        return false;
    return pread(memory, &section, sizeof section, (off_t)(rseq.at + 8)) != sizeof section ||
           section != 0;
}

// ---- stop and go --------------------------------------------------------------------------------

bool tracee_seize(struct tracee *t, uintptr_t options) {
    t->seized = ptrace(PTRACE_SEIZE, t->id, NULL, (void *)options) == 0;
    if (t->seized)
        ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL);
    return t->seized;
}

void tracee_ask(struct tracee *t) {
    if (!t->stop && !t->dead)
        ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL);
}

// At a stop that was not asked for, a call was interrupted by the program's own signal.
static void note_stop(struct tracee *t, int status) {
    int signal = WSTOPSIG(status);
    bool event = status >> 16 == PTRACE_EVENT_STOP;
    if (event && signal == SIGTRAP) {
        t->stop = TRACEE_ASKED;
        mend(t->id);
    } else if (signal == (SIGTRAP | 0x80)) {
        t->stop = TRACEE_AT_CALL;
    } else {
        t->stop = TRACEE_AT_SIGNAL;
        t->signal = status >> 16 ? 0 : signal;
    }
}

bool tracee_look(struct tracee *t) {
    int status;
    pid_t id = t->dead || t->stop ? 0 : waitpid(t->id, &status, __WALL | WNOHANG);
    if (id < 0 && errno != ECHILD)
        return false; // asked again at the next look
    if (id < 0 || (id > 0 && !WIFSTOPPED(status)))
        t->dead = true;
    else if (id > 0)
        note_stop(t, status);
    return t->stop != TRACEE_RUNS;
}

bool tracee_await(struct tracee *t, unsigned patience_ms) {
    const uint64_t most = patience_ms * 1000000ull, longest = LONGEST_MS * 1000000ull;
    const uint64_t end = patience_now_ns() + (most > longest ? most : longest);
    struct patience patience = {0};
    uint64_t spent = 0;
    for (unsigned i = 1; spent < most && !tracee_look(t) && !t->dead; i++) {
        tracee_nap(TICK_NS);
        if (i % LOOK_TICKS)
            continue;
        spent = patience_now_ns() < end ? spent + patience_chance(&patience, t->id, t->id) : most;
        t->dead = tracee_has_ended(t->id);
    }
    return t->stop != TRACEE_RUNS;
}

void tracee_go_on(struct tracee *t, int how) {
    t->stop = TRACEE_RUNS;
    t->dead = ptrace(how, t->id, NULL, (void *)(uintptr_t)t->signal) != 0;
    t->signal = 0;
}

bool tracee_let_go(struct tracee *t, pid_t pid) {
    struct tracee_call call;
    if (!t->seized)
        return true;
    if (!tracee_look(t) && !t->dead && !tracee_asleep(pid, t->id, &call))
        tracee_await(t, LET_GO_MS);
    tracee_look(t); // one that has stopped since the first look is asleep, too
    if (t->stop && ptrace(PTRACE_DETACH, t->id, NULL, (void *)(uintptr_t)t->signal) == 0)
        return true;
    // A thread that executes a program waits until the end of this one has been seen.
    t->dead |= t->stop != TRACEE_RUNS;
    pid_t got = t->dead ? waitpid(t->id, NULL, __WALL | WNOHANG) : 0;
    return got == t->id || (got < 0 && errno == ECHILD);
}

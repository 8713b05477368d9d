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
#include <sys/time.h>
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

// ---- signals ------------------------------------------------------------------------------------

// Older headers lack these.
#define GET_MASK 0x420a
#define SET_MASK 0x420b

#define FAULTS                                                                                     \
    (1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) | 1ull << (SIGILL - 1) | 1ull << (SIGFPE - 1) |  \
     1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1))

bool tracee_block(const struct tracee *t, uint64_t *mask) {
    return ptrace((int)GET_MASK, t->id, (void *)sizeof *mask, mask) == 0 &&
           tracee_unblock(t, ~FAULTS);
}

bool tracee_unblock(const struct tracee *t, uint64_t mask) {
    return ptrace((int)SET_MASK, t->id, (void *)sizeof mask, &mask) == 0;
}

// ---- stop and go --------------------------------------------------------------------------------

// A thread that executes a program waits for the end of all others, and the end of one that is
// traced comes when its tracer waits for it. But to trace one more, we wait in ptrace(2) for the
// thread that executes. So meanwhile a timer has those reaped that have ended.
#define REAP_US 20000

static struct {
    pid_t *id;
    size_t count, room;
} traced; // and some that were traced once

// A wait for the end alone would swallow a stop, too: the kernel tells a tracer both. False: it has
// not ended.
static bool reaped(pid_t id) {
    siginfo_t is = {.si_pid = 0};
    if (waitid(P_PID, (id_t)id, &is, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0)
        return errno == ECHILD;
    if (is.si_pid != id || is.si_code == CLD_TRAPPED || is.si_code == CLD_STOPPED)
        return false;
    return waitid(P_PID, (id_t)id, &is, WEXITED | WNOHANG | __WALL) == 0;
}

static void reap(void) {
    size_t kept = 0;
    for (size_t i = 0; i < traced.count; i++)
        if (!reaped(traced.id[i]))
            traced.id[kept++] = traced.id[i];
    traced.count = kept;
}

// Without memory for it, it is reaped when it is looked at.
static void note_traced(pid_t id) {
    if (traced.count == traced.room)
        reap();
    if (traced.count == traced.room) {
        size_t room = traced.room ? traced.room * 2 : 64;
        pid_t *more = realloc(traced.id, room * sizeof *more);
        if (!more)
            return;
        traced.id = more;
        traced.room = room;
    }
    traced.id[traced.count++] = id;
}

static void at_alarm(int number) {
    int saved = errno;
    (void)number;
    reap();
    errno = saved;
}

// The kernel refuses one that is traced already. If it is by us, then the thread was known by
// another id before it executed a program.
bool tracee_seize(struct tracee *t, uintptr_t options) {
    const struct itimerval often = {{0, REAP_US}, {0, REAP_US}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = at_alarm, .sa_flags = SA_RESTART}, before;
    sigset_t alarm, mask;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigaction(SIGALRM, &action, &before);
    pthread_sigmask(SIG_UNBLOCK, &alarm, &mask);
    setitimer(ITIMER_REAL, &often, NULL);
    options |= PTRACE_O_TRACEEXEC;
    t->seized = ptrace(PTRACE_SEIZE, t->id, NULL, (void *)options) == 0;
    int error = t->seized ? 0 : errno;
    setitimer(ITIMER_REAL, &never, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    sigaction(SIGALRM, &before, NULL);
    if (t->seized || error == EPERM)
        t->seized |= ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL) == 0;
    if (t->seized)
        note_traced(t->id);
    errno = error;
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
    } else if (status >> 16 == PTRACE_EVENT_EXEC) {
        t->stop = TRACEE_AT_EXEC;
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

bool tracee_stands(const struct tracee *t) {
    unsigned long message;
    return ptrace(PTRACE_GETEVENTMSG, t->id, NULL, &message) == 0;
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
        reap(); // it may execute a program, and wait for their ends
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

// A signal for a thread that was killed is not for the one that has its id since it has executed a
// program.
static int signal_for(const struct tracee *t) {
    siginfo_t is;
    bool another = t->signal && ptrace(PTRACE_GETSIGINFO, t->id, NULL, &is) == 0 &&
                   is.si_code == (SIGTRAP | PTRACE_EVENT_EXEC << 8);
    return another ? 0 : t->signal;
}

bool tracee_let_go(struct tracee *t, pid_t pid) {
    struct tracee_call call;
    if (!t->seized)
        return true;
    t->dead = false; // one that has executed a program may have its id now
    if (!tracee_look(t) && !t->dead && !tracee_asleep(pid, t->id, &call))
        tracee_await(t, LET_GO_MS);
    tracee_look(t); // one that has stopped since the first look is asleep, too
    if (t->stop && ptrace(PTRACE_DETACH, t->id, NULL, (void *)(uintptr_t)signal_for(t)) == 0)
        return true;
    // A thread that executes a program waits until the end of this one has been seen.
    t->dead |= t->stop != TRACEE_RUNS;
    return t->dead && reaped(t->id);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "remote_call.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <time.h>
#include <unistd.h>

#include "guardian.h"
#include "tools/common/program_maps.h"
#include "tools/common/program_status.h"
#include "tracee.h"

// While the thread has other registers nobody gives up early: the machine may be slow.
enum { PATIENCE_MS = 200, MORE_PATIENCE_MS = 60000, TICK_NS = 20000, TRIES = 1000 };
// Older headers lack these.
#define CALL_PIDFD_OPEN 434
#define CALL_PIDFD_GETFD 438

struct caller {
    pid_t pid;
    struct tracee thread;
    uint64_t gate; // the address of a syscall instruction
    int memory;    // /proc/PID/mem
    long flags;
    int fd;
};

// ---- where --------------------------------------------------------------------------------------

// The kernel's own code in every process has such an instruction.
static void look_for_gate(const struct program_map *m, void *arg) {
    static char code[65536];
    struct caller *c = arg;
    if (strcmp(m->name, "[vdso]") != 0 || m->end - m->start > sizeof code)
        return;
    ssize_t got = pread(c->memory, code, m->end - m->start, (off_t)m->start);
    for (ssize_t i = 0; i + 1 < got && !c->gate; i++)
        if (code[i] == 0x0f && code[i + 1] == 0x05)
            c->gate = m->start + (uint64_t)i;
}

// ---- which thread -------------------------------------------------------------------------------

// A descriptor of the other process, as one of ours. -1: it cannot be had.
static int fetch(pid_t pid, long number) {
    int process = (int)syscall(CALL_PIDFD_OPEN, pid, 0);
    int fd = process < 0 ? -1 : (int)syscall(CALL_PIDFD_GETFD, process, (int)number, 0);
    if (process >= 0)
        close(process);
    return fd;
}

// Whether a wait for input on the descriptor has a time limit of its own.
static bool has_timeout(pid_t pid, long number) {
    struct timeval time = {0};
    socklen_t len = sizeof time;
    int fd = fetch(pid, number);
    bool none = fd >= 0 && (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len) == 0
                                ? !time.tv_sec && !time.tv_usec
                                : errno == ENOTSOCK);
    if (fd >= 0)
        close(fd);
    return !none;
}

// Whether a stopped thread begins the call again with the time that is left, or the call has no
// time limit, and has transferred nothing yet.
static bool begins_again(pid_t pid, const struct tracee_call *call) {
    switch (call->number) {
    case SYS_futex:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_restart_syscall:
    case SYS_poll:
    case SYS_ppoll:
    case SYS_select:
    case SYS_pselect6:
    case SYS_pause:
    case SYS_rt_sigsuspend:
    case SYS_wait4:
    case SYS_waitid:
        return true;
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
        return (int)call->argument[3] < 0;
    case SYS_read:
    case SYS_accept:
    case SYS_accept4:
        return !has_timeout(pid, (long)call->argument[0]);
    case SYS_recvfrom:
        return !call->argument[3] && !has_timeout(pid, (long)call->argument[0]);
    default:
        return false;
    }
}

struct choice {
    pid_t pid, asleep, awake;
};

static bool consider(pid_t id, void *arg) {
    struct choice *c = arg;
    struct tracee_call call;
    if (!tracee_asleep(c->pid, id, &call))
        c->awake = id;
    else if (begins_again(c->pid, &call))
        c->asleep = id;
    return !c->asleep;
}

static pid_t choose(pid_t pid) {
    struct choice c = {.pid = pid};
    tracee_each(pid, consider, &c);
    return c.asleep ? c.asleep : c.awake;
}

// ---- the call -----------------------------------------------------------------------------------

// The thread goes on until it stops so. It may stop before, as if it was asked to: SIGCONT does
// that to a traced thread even if it blocks all signals.
static bool runs_to(struct tracee *t, int how, enum tracee_stop stop) {
    do
        tracee_go_on(t, how);
    while (tracee_await(t, MORE_PATIENCE_MS) && t->stop == TRACEE_ASKED && stop != TRACEE_ASKED);
    return t->stop == stop;
}

// The thread was asked to stop and has; and so it has again afterwards, before it has run any
// instruction of the program's. False: it has not; it has the registers that it had.
static bool call(struct caller *c, const struct user_regs_struct *old, long number, long arg,
                 long *result) {
    struct tracee *t = &c->thread;
    struct user_regs_struct regs = *old;
    regs.rip = c->gate;
    regs.rax = (unsigned long)number;
    regs.orig_rax = ~0ull; // no call is to begin again now
    regs.rdi = (unsigned long)arg;
    bool good =
        ptrace(PTRACE_SETREGS, t->id, NULL, &regs) == 0 &&
        runs_to(t, PTRACE_SYSCALL, TRACEE_AT_CALL) && runs_to(t, PTRACE_SYSCALL, TRACEE_AT_CALL) &&
        ptrace(PTRACE_GETREGS, t->id, NULL, &regs) == 0 &&
        ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL) == 0 && runs_to(t, PTRACE_CONT, TRACEE_ASKED);
    *result = (long)regs.rax;
    for (unsigned i = 0; i < TRIES && ptrace(PTRACE_SETREGS, t->id, NULL, old) != 0; i++)
        tracee_nap(TICK_NS);
    return good;
}

static void make_both(struct caller *c, const struct user_regs_struct *regs) {
    long there, ignored;
    if (!call(c, regs, SYS_userfaultfd, c->flags, &there) || there < 0)
        return;
    c->fd = fetch(c->pid, there);
    call(c, regs, SYS_close, there, &ignored);
}

// Before it stops the process may execute another program, which has its gate elsewhere.
static bool stops(struct caller *c) {
    if (!tracee_await(&c->thread, PATIENCE_MS) || c->thread.stop != TRACEE_ASKED)
        return false;
    c->memory = program_memory(c->pid, O_RDONLY);
    return c->memory >= 0 && program_maps_each(c->pid, look_for_gate, c) && c->gate &&
           !tracee_in_sequence(&c->thread, c->memory);
}

static void make_calls(struct caller *c) {
    struct user_regs_struct regs;
    struct tracee *t = &c->thread;
    uint64_t mask;
    if (!stops(c) || ptrace(PTRACE_GETREGS, t->id, NULL, &regs) != 0 || !tracee_block(t, &mask))
        return;
    make_both(c, &regs);
    for (unsigned i = 0; i < TRIES && !tracee_unblock(t, mask); i++)
        tracee_nap(TICK_NS);
}

static void trace(struct caller *c) {
    if (tracee_seize(&c->thread, PTRACE_O_TRACESYSGOOD))
        make_calls(c);
    tracee_let_go(&c->thread, c->pid);
}

// ---- the guardian -------------------------------------------------------------------------------

union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

static void give(int socket, int fd) {
    char byte = 0;
    struct iovec bytes = {&byte, 1};
    union control control = {{0}};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd < 0)
        return;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(item), &fd, sizeof fd);
    sendmsg(socket, &message, MSG_NOSIGNAL);
}

static int receive(int socket) {
    char byte;
    int fd = -1;
    struct iovec bytes = {&byte, 1};
    union control control = {{0}};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got;
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *item = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (item && item->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(item), sizeof fd);
    return fd;
}

static void work(int socket, void *arg) {
    struct caller *c = arg;
    trace(c);
    give(socket, c->fd);
}

int remote_userfaultfd(pid_t pid, long flags) {
    struct caller c = {.pid = pid, .flags = flags, .fd = -1, .thread = {.id = choose(pid)}};
    struct guardian guardian;
    if (!c.thread.id || !guardian_begin(&guardian, work, &c))
        return -1;
    int fd = receive(guardian.end);
    guardian_end(&guardian);
    return fd;
}

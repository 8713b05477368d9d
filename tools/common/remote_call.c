// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "remote_call.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os_file.h"
#include "standstill.h"

// While the thread has other registers nobody gives up early: the machine may be slow.
enum { PATIENCE_MS = 200, MORE_PATIENCE_MS = 60000, TICK_NS = 20000, TRIES = 1000 };
// Older headers lack these.
#define CALL_PIDFD_OPEN 434
#define CALL_PIDFD_GETFD 438
#define CALL_CLOSE_RANGE 436
#define RSEQ_CONFIGURATION 0x420f

struct caller {
    pid_t pid, id;
    uint64_t gate; // the address of a syscall instruction
    int memory;    // /proc/PID/mem
    long flags;
    int fd;
    int signal; // at which the thread has stopped instead; it goes on with that
};

// ---- where --------------------------------------------------------------------------------------

// The kernel's own code in every process has such an instruction.
static uint64_t find_gate(pid_t pid, int memory) {
    char path[32], line[512];
    static char code[65536];
    unsigned long start = 0, end = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && !found && fgets(line, sizeof line, in))
        found = strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2;
    if (in)
        fclose(in);
    if (!found || end - start > sizeof code)
        return 0;
    ssize_t got = pread(memory, code, end - start, (off_t)start);
    for (ssize_t i = 0; i + 1 < got; i++)
        if (code[i] == 0x0f && code[i + 1] == 0x05)
            return start + (uint64_t)i;
    return 0;
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
static bool begins_again(pid_t pid, const struct standstill_call *call) {
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

static bool consider(const char *name, void *arg) {
    struct choice *c = arg;
    pid_t id = (pid_t)atoi(name);
    struct standstill_call call;
    if (id <= 0)
        return true;
    if (!standstill_asleep(c->pid, id, &call))
        c->awake = id;
    else if (begins_again(c->pid, &call))
        c->asleep = id;
    return !c->asleep;
}

static pid_t choose(pid_t pid) {
    char path[32];
    struct choice c = {.pid = pid};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        pm_os_each_name(fd, consider, &c);
        close(fd);
    }
    return c.asleep ? c.asleep : c.awake;
}

// ---- the call -----------------------------------------------------------------------------------

#define AT_EVENT 1 // a stop that we have asked for
#define AT_CALL 2  // before or after a system call
static int await(struct caller *c, uint64_t patience_ms) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    int status;
    for (uint64_t spent = 0; spent < patience_ms * 1000000ull; spent += TICK_NS) {
        pid_t id = waitpid(c->id, &status, __WALL | WNOHANG);
        if (id < 0 || (id > 0 && !WIFSTOPPED(status)))
            return 0;
        if (id > 0 && status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) == SIGTRAP)
            return AT_EVENT;
        if (id > 0 && WSTOPSIG(status) == (SIGTRAP | 0x80))
            return AT_CALL;
        if (id > 0) {
            c->signal = status >> 16 ? 0 : WSTOPSIG(status);
            return 0;
        }
        nanosleep(&tick, NULL);
    }
    return 0;
}

// A restartable sequence would no longer be aborted after its thread was elsewhere.
static bool in_sequence(const struct caller *c) {
    struct {
        uint64_t at;
        uint32_t size, signature, flags, pad;
    } rseq = {0};
    uint64_t section = 0;
    if (ptrace((int)RSEQ_CONFIGURATION, c->id, (void *)sizeof rseq, &rseq) <= 0 || !rseq.at)
        return false;
    return pread(c->memory, &section, sizeof section, (off_t)(rseq.at + 8)) != sizeof section ||
           section != 0;
}

// The thread is at an event stop, and is at one again afterwards, before it has run any
// instruction of the program's. False: it is not; it has the registers that it had.
static bool call(struct caller *c, const struct user_regs_struct *old, long number, long arg,
                 long *result) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    struct user_regs_struct regs = *old;
    regs.rip = c->gate;
    regs.rax = (unsigned long)number;
    regs.orig_rax = ~0ull; // no call is to begin again now
    regs.rdi = (unsigned long)arg;
    bool good =
        ptrace(PTRACE_SETREGS, c->id, NULL, &regs) == 0 &&
        ptrace(PTRACE_SYSCALL, c->id, NULL, NULL) == 0 && await(c, MORE_PATIENCE_MS) == AT_CALL &&
        ptrace(PTRACE_SYSCALL, c->id, NULL, NULL) == 0 && await(c, MORE_PATIENCE_MS) == AT_CALL &&
        ptrace(PTRACE_GETREGS, c->id, NULL, &regs) == 0 &&
        ptrace(PTRACE_INTERRUPT, c->id, NULL, NULL) == 0 &&
        ptrace(PTRACE_CONT, c->id, NULL, NULL) == 0 && await(c, MORE_PATIENCE_MS) == AT_EVENT;
    *result = (long)regs.rax;
    for (unsigned i = 0; i < TRIES && ptrace(PTRACE_SETREGS, c->id, NULL, old) != 0; i++)
        nanosleep(&tick, NULL);
    return good;
}

static void make_calls(struct caller *c) {
    struct user_regs_struct regs;
    long there, ignored;
    if (await(c, PATIENCE_MS) != AT_EVENT)
        return;
    standstill_mend(c->id);
    if (in_sequence(c) || ptrace(PTRACE_GETREGS, c->id, NULL, &regs) != 0 ||
        !call(c, &regs, SYS_userfaultfd, c->flags, &there) || there < 0)
        return;
    c->fd = fetch(c->pid, there);
    call(c, &regs, SYS_close, there, &ignored);
}

static void trace(struct caller *c) {
    if (ptrace(PTRACE_SEIZE, c->id, NULL, (void *)PTRACE_O_TRACESYSGOOD) != 0)
        return;
    if (ptrace(PTRACE_INTERRUPT, c->id, NULL, NULL) == 0)
        make_calls(c);
    ptrace(PTRACE_DETACH, c->id, NULL, (void *)(uintptr_t)c->signal);
}

// ---- the guardian -------------------------------------------------------------------------------
//
// Amid the call the thread has registers that are not its own. Would the process that traces it die
// then, the kernel would let it go on with these. So a process of its own does it, which no signal
// to the tool or to its group reaches, and which lives for some milliseconds.

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

// The locks of the tool must end with the tool.
static void close_others(int a, int b) {
    unsigned low = (unsigned)(a < b ? a : b), high = (unsigned)(a < b ? b : a);
    syscall(CALL_CLOSE_RANGE, 0, low - 1, 0);
    if (low + 1 < high)
        syscall(CALL_CLOSE_RANGE, low + 1, high - 1, 0);
    syscall(CALL_CLOSE_RANGE, high + 1, ~0u, 0);
}

static _Noreturn void guard(struct caller *c, int socket) {
    sigset_t all;
    close_others(socket, c->memory);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    trace(c);
    give(socket, c->fd);
    _exit(0);
}

static int call_by_guardian(struct caller *c) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    pid_t guardian = fork();
    if (guardian == 0)
        guard(c, ends[1]);
    close(ends[1]);
    int fd = guardian > 0 ? receive(ends[0]) : -1;
    close(ends[0]);
    while (guardian > 0 && waitpid(guardian, NULL, 0) < 0 && errno == EINTR)
        continue;
    return fd;
}

int remote_userfaultfd(pid_t pid, long flags) {
    char path[32];
    struct caller c = {.pid = pid, .flags = flags, .fd = -1, .id = choose(pid)};
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    c.memory = open(path, O_RDONLY | O_CLOEXEC);
    c.gate = c.memory < 0 ? 0 : find_gate(pid, c.memory);
    int fd = c.id && c.gate ? call_by_guardian(&c) : -1;
    if (c.memory >= 0)
        close(c.memory);
    return fd;
}

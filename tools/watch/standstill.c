// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "standstill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
#include "trace_rights.h"

// How long threads could run that do not come to rest. On a busy machine that may take longer; but
// who has been stopped meanwhile does not wait for more than PATIENCE_MAX_MS.
enum { PATIENCE_MS = 2000, PATIENCE_MAX_MS = 30000, AGAIN_MAX = 1000, TICK_NS = 20000 };

struct thread {
    pid_t id;
    bool traced;  // by us
    bool stopped; // by us, or at a signal
    bool listed;  // in the last list
    bool theirs;  // another of these tools has it
    int signal;   // at which it has stopped; it goes on with that
    struct patience patience;
    // While it was asleep: how often it had been switched away from a processor.
    uint64_t switches;
};

struct hold {
    pid_t pid;
    void (*fn)(void *arg);
    void *arg;
    struct thread *thread;
    size_t count, room;
    bool restless;           // in this look at the threads, one was running, or had been
    bool failed;             // `result` and `err` say why
    uint64_t looked, passed; // when, and how long after the look before
    uint64_t chance; // of a thread that does not rest: how long it could have run since then
    enum standstill_result result;
    struct pm_error *err;
    uint64_t began, ended;
};

static void fail(struct hold *h, enum standstill_result result) {
    h->failed = true;
    h->result = result;
}

// ---- what a thread does -------------------------------------------------------------------------

// The kernel prints the call only after it has waited until the thread is off its processor.
bool standstill_asleep(pid_t pid, pid_t thread, struct standstill_call *call) {
    char text[256], *at = text;
    if (!program_text(pid, thread, "syscall", text, sizeof text) || !strncmp(text, "running", 7))
        return false;
    call->number = strtol(at, &at, 10);
    for (unsigned i = 0; i < 6; i++)
        call->argument[i] = strtoull(at, &at, 16);
    return true;
}

static bool read_switches(const struct hold *h, pid_t id, uint64_t *switches) {
    char text[4096];
    if (!program_text(h->pid, id, "status", text, sizeof text))
        return false;
    *switches = (uint64_t)(program_number(text, "voluntary_ctxt_switches", 0) +
                           program_number(text, "nonvoluntary_ctxt_switches", 0));
    const char *state = strstr(text, "\nState:\t");
    if (state && strchr("ZX", state[8]))
        *switches = UINT64_MAX; // dead: it never runs again
    return true;
}

// The number of switches is read before the first look at the thread, and after every later one.
// Each time the thread is off the processor. So a thread with the same number has not run.
static bool begins_to_sleep(const struct hold *h, struct thread *t) {
    struct standstill_call call;
    return read_switches(h, t->id, &t->switches) &&
           (t->switches == UINT64_MAX || standstill_asleep(h->pid, t->id, &call));
}

static bool still_sleeps(const struct hold *h, const struct thread *t) {
    uint64_t switches;
    struct standstill_call call;
    return t->switches == UINT64_MAX ||
           (standstill_asleep(h->pid, t->id, &call) && read_switches(h, t->id, &switches) &&
            switches == t->switches);
}

// ---- stopping -----------------------------------------------------------------------------------

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

// Older headers lack it.
#define RSEQ_CONFIGURATION 0x420f

bool standstill_in_sequence(pid_t thread, int memory) {
    struct {
        uint64_t at;
        uint32_t size, signature, flags, pad;
    } rseq = {0};
    uint64_t section = 0;
    if (ptrace((int)RSEQ_CONFIGURATION, thread, (void *)sizeof rseq, &rseq) <= 0 || !rseq.at)
        return false;
    return pread(memory, &section, sizeof section, (off_t)(rseq.at + 8)) != sizeof section ||
           section != 0;
}

// The kernel's own errors for this purpose: the call begins again unless a handler runs.
#define RESTART_IF_NO_HANDLER 514

void standstill_mend(pid_t thread) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, thread, NULL, &regs) != 0 || (long)regs.rax != -EINTR ||
        !may_begin_again((long)regs.orig_rax))
        return;
    regs.rax = (unsigned long long)-RESTART_IF_NO_HANDLER;
    ptrace(PTRACE_SETREGS, thread, NULL, &regs);
}

// The kernel's own threads in the process (io_uring's) cannot be traced. They come to rest by
// themselves.
static void look_refused(struct hold *h, struct thread *t) {
    int error = errno;
    t->theirs = error == EPERM && standstill_tool_has(h->pid, t->id);
    if (error == ESRCH)
        t->switches = UINT64_MAX;
    else if (standstill_allowed(h->pid, h->err))
        begins_to_sleep(h, t);
    else
        fail(h, STANDSTILL_REFUSED);
}

static void stop(struct hold *h, struct thread *t) {
    if (!h->began)
        h->began = patience_now_ns();
    if (ptrace(PTRACE_SEIZE, t->id, NULL, NULL) != 0) {
        look_refused(h, t);
        return;
    }
    t->traced = true;
    ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL);
}

// Has the thread come to its stop?
static void await_stop(struct thread *t) {
    int status;
    pid_t id = waitpid(t->id, &status, __WALL | WNOHANG);
    if (id < 0 && errno != ECHILD)
        return;                                      // asked again at the next look
    if (id < 0 || (id > 0 && !WIFSTOPPED(status))) { // it has ended
        t->traced = t->stopped = false;
        t->switches = UINT64_MAX;
    } else if (id > 0) {
        t->stopped = true;
        t->signal = status >> 16 ? 0 : WSTOPSIG(status);
        if (!t->signal)
            standstill_mend(t->id);
    }
}

// A thread that was asked to stop may be asleep in the kernel, where it does not hear that: it
// waits for a disk, or for its vfork. It stops before it returns to the program.
static void watch(struct hold *h, struct thread *t) {
    if (t->stopped)
        return;
    if (t->traced)
        await_stop(t);
    if (t->stopped || still_sleeps(h, t))
        return;
    h->restless = true;
    t->theirs = false;
    if (!t->traced)
        stop(h, t);
    else
        begins_to_sleep(h, t);
    uint64_t chance = patience_chance(&t->patience, h->pid, t->id);
    if (!t->theirs && chance > h->chance)
        h->chance = chance;
}

// ---- all threads --------------------------------------------------------------------------------

static struct thread *find(struct hold *h, pid_t id) {
    for (size_t i = 0; i < h->count; i++)
        if (h->thread[i].id == id)
            return &h->thread[i];
    return NULL;
}

static bool visit(const char *name, void *arg) {
    struct hold *h = arg;
    pid_t id = (pid_t)atoi(name);
    if (id <= 0 || h->failed)
        return true;
    struct thread *t = find(h, id);
    if (!t) {
        if (h->count == h->room) {
            size_t room = h->room ? h->room * 2 : 64;
            struct thread *more = realloc(h->thread, room * sizeof *more);
            if (!more) {
                pm_fail(h->err, PM_OPERATIONAL, "no memory for the threads of process %d",
                        (int)h->pid);
                fail(h, STANDSTILL_REFUSED);
                return false;
            }
            h->thread = more;
            h->room = room;
        }
        t = &h->thread[h->count++];
        *t = (struct thread){.id = id};
        h->restless = true; // whoever has made it has run
        h->chance = h->passed;
        if (!begins_to_sleep(h, t))
            stop(h, t);
        return true;
    }
    watch(h, t);
    return true;
}

// False: the process has ended.
static bool look_at_all(struct hold *h) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)h->pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t now = patience_now_ns();
    h->passed = h->looked ? now - h->looked : 0;
    h->looked = now;
    h->restless = false;
    h->chance = 0;
    bool good = fd >= 0 && pm_os_each_name(fd, visit, h);
    if (fd >= 0)
        close(fd);
    if (!good && !h->failed)
        fail(h, STANDSTILL_GONE);
    return good && !h->failed;
}

// Only a thread that runs makes another one. So two looks in a row that find nobody running have
// seen all threads.
static bool gather(struct hold *h) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    const uint64_t end = patience_now_ns() + PATIENCE_MAX_MS * 1000000ull;
    uint64_t spent = 0;
    for (unsigned quiet = 0; quiet < 2; quiet = h->restless ? 0 : quiet + 1) {
        if (!look_at_all(h))
            return false;
        spent += h->chance;
        if (h->restless && (spent > PATIENCE_MS * 1000000ull || patience_now_ns() > end)) {
            pm_fail(h->err, PM_OPERATIONAL,
                    "the threads of process %d do not come to rest; nothing was changed: try again",
                    (int)h->pid);
            fail(h, STANDSTILL_RESTLESS);
            return false;
        }
        if (h->restless)
            nanosleep(&tick, NULL);
    }
    return true;
}

// Who gives up has asked some to stop that have not come to it yet. Their calls fail with EINTR if
// nobody mends that. One that is asleep does not hear it (watch()), and is let go by the end of
// this thread.
static void let_go(struct hold *h) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    const uint64_t end = patience_now_ns() + PATIENCE_MAX_MS * 1000000ull;
    struct standstill_call call;
    for (size_t i = 0; i < h->count; i++) {
        struct thread *t = &h->thread[i];
        uint64_t spent = 0;
        if (t->traced && !t->stopped)
            await_stop(t);
        while (t->traced && !t->stopped && spent < PATIENCE_MS * 1000000ull &&
               patience_now_ns() < end && !standstill_asleep(h->pid, t->id, &call)) {
            nanosleep(&tick, NULL);
            spent += patience_chance(&t->patience, h->pid, t->id);
            await_stop(t);
        }
        if (t->stopped)
            ptrace(PTRACE_DETACH, t->id, NULL, (void *)(uintptr_t)t->signal);
    }
    if (h->began)
        h->ended = patience_now_ns();
}

// A thread of its own: the kernel lets all threads go that it has stopped when it ends.
static void *hold_all(void *arg) {
    struct hold *h = arg;
    for (unsigned i = 0;; i++) {
        if (!gather(h))
            break;
        h->fn(h->arg);
        if (look_at_all(h) && !h->restless)
            break;
        if (h->failed)
            break;
        if (i == AGAIN_MAX) {
            pm_fail(h->err, PM_OPERATIONAL,
                    "process %d has too many threads that wake up; nothing was changed: try again",
                    (int)h->pid);
            fail(h, STANDSTILL_RESTLESS);
            break;
        }
    }
    let_go(h);
    return NULL;
}

// ---- from outside -------------------------------------------------------------------------------

static int tracer_of_thread(pid_t pid, pid_t id) {
    char text[4096];
    return program_text(pid, id, "status", text, sizeof text)
               ? (int)program_number(text, "TracerPid", 0)
               : 0; // it is gone, which is found out elsewhere
}

// A guardian (guardian.h) of another tool, which ends soon.
static bool is_tool(int tracer) {
    char text[64];
    return tracer && program_text(tracer, tracer, "comm", text, sizeof text) &&
           (strncmp(text, "pmalloc-backup", 14) == 0 || strncmp(text, "pmalloc-info", 12) == 0);
}

bool standstill_tool_has(pid_t pid, pid_t thread) {
    int tracer = tracer_of_thread(pid, thread);
    return !tracer || is_tool(tracer);
}

// Who traces the process; 0: nobody.
static int tracer_of(pid_t pid) {
    const struct timespec tick = {.tv_nsec = 1000000};
    const uint64_t end = patience_now_ns() + PATIENCE_MAX_MS * 1000000ull;
    struct patience patience = {0};
    int tracer = tracer_of_thread(pid, pid);
    for (uint64_t spent = 0;
         is_tool(tracer) && spent < PATIENCE_MS * 1000000ull / 2 && patience_now_ns() < end;) {
        nanosleep(&tick, NULL);
        spent += patience_chance(&patience, tracer, tracer);
        tracer = tracer_of_thread(pid, pid);
    }
    return tracer;
}

bool standstill_allowed(pid_t pid, struct pm_error *err) {
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
    trace_refused(pid, err);
    return false;
}

enum standstill_result standstill(pid_t pid, void fn(void *arg), void *arg, uint64_t *pause_ns,
                                  struct pm_error *err) {
    struct hold h = {.pid = pid, .fn = fn, .arg = arg, .err = err, .result = STANDSTILL_DONE};
    pthread_t thread;
    *pause_ns = 0;
    if (!standstill_allowed(pid, err))
        return STANDSTILL_REFUSED;
    int error = pthread_create(&thread, NULL, hold_all, &h);
    if (error) {
        pm_fail(err, PM_OPERATIONAL, "no thread to hold process %d with: %s", (int)pid,
                strerror(error));
        return STANDSTILL_REFUSED;
    }
    pthread_join(thread, NULL);
    *pause_ns = h.ended - h.began;
    free(h.thread);
    return h.result;
}

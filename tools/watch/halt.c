// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "halt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os_file.h"
#include "patience.h"
#include "standstill.h"
#include "tools/common/program_status.h"

// How long a thread could run that does not stop, and how long that may take on a busy machine.
enum { PATIENCE_MS = 1000, PATIENCE_MAX_MS = 30000 };
enum { TICK_NS = 20000, LOOK_TICKS = 50 };
#define PF_IO_WORKER 0x10ul // the kernel's own threads in a process
#define PF_USER_WORKER 0x4000ul

void halt_nap(long ns) {
    const struct timespec nap = {.tv_nsec = ns};
    nanosleep(&nap, NULL);
}

// ---- one thread ---------------------------------------------------------------------------------

// The letter of its state, and the flags; 0: it is no more.
static char state_of(pid_t pid, pid_t id, unsigned long *flags) {
    char text[1024], state = 0;
    program_text(pid, id, "stat", text, sizeof text);
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %lu", &state, flags) != 2)
        return 0;
    return state;
}

bool halt_has_ended(pid_t id) {
    unsigned long flags;
    char state = state_of(id, id, &flags);
    return !state || strchr("ZX", state);
}

bool halt_stopped(struct halt_thread *t) {
    int status;
    pid_t id = t->dead || t->stopped ? 0 : waitpid(t->id, &status, __WALL | WNOHANG);
    if (id < 0 && errno != ECHILD)
        return false; // asked again at the next look
    if (id < 0 || (id > 0 && !WIFSTOPPED(status))) {
        t->dead = true;
    } else if (id > 0) {
        bool event = status >> 16 == PTRACE_EVENT_STOP;
        t->clean = event && WSTOPSIG(status) == SIGTRAP;
        t->signal = event ? 0 : WSTOPSIG(status);
        if (t->clean)
            standstill_mend(t->id);
        t->stopped = ptrace(PTRACE_GETREGS, t->id, NULL, &t->regs) == 0;
        t->dead = !t->stopped;
    }
    return t->stopped;
}

bool halt_await(struct halt_thread *t) {
    const uint64_t end = patience_now_ns() + PATIENCE_MAX_MS * 1000000ull;
    struct patience patience = {0};
    uint64_t spent = 0;
    for (unsigned i = 1; spent < PATIENCE_MS * 1000000ull && !halt_stopped(t) && !t->dead; i++) {
        halt_nap(TICK_NS);
        if (i % LOOK_TICKS)
            continue;
        spent = patience_now_ns() < end ? spent + patience_chance(&patience, t->id, t->id) : end;
        t->dead = halt_has_ended(t->id);
    }
    return t->stopped;
}

void halt_go_on(struct halt_thread *t) {
    t->stopped = false;
    t->dead = ptrace(PTRACE_CONT, t->id, NULL, (void *)(uintptr_t)t->signal) != 0;
    t->signal = 0;
}

void halt_recall(struct halt_thread *t) {
    if (!t->stopped && !t->dead)
        ptrace(PTRACE_INTERRUPT, t->id, NULL, NULL);
}

// ---- all ----------------------------------------------------------------------------------------

static struct halt_thread *add(struct halt *h, pid_t id) {
    if (h->count == h->room) {
        size_t room = h->room ? h->room * 2 : 64;
        struct halt_thread *more = realloc(h->thread, room * sizeof *more);
        if (!more)
            return NULL;
        h->thread = more;
        h->room = room;
    }
    h->thread[h->count] = (struct halt_thread){.id = id};
    return &h->thread[h->count++];
}

struct pass {
    struct halt *h;
    struct pm_error *err;
    bool grown, failed;
};

static bool visit(const char *name, void *arg) {
    struct pass *p = arg;
    pid_t id = (pid_t)atoi(name);
    unsigned long flags = 0;
    for (size_t i = 0; i < p->h->count; i++)
        if (p->h->thread[i].id == id)
            return true;
    if (id <= 0)
        return true;
    struct halt_thread *t = add(p->h, id);
    if (!t) {
        pm_fail(p->err, PM_OPERATIONAL, "no memory for the threads of process %d", (int)p->h->pid);
        p->failed = true;
        return false;
    }
    p->grown = true;
    if (ptrace(PTRACE_SEIZE, id, NULL, NULL) == 0) {
        ptrace(PTRACE_INTERRUPT, id, NULL, NULL);
        return true;
    }
    int error = errno;
    char state = state_of(p->h->pid, id, &flags);
    t->dead = !state || strchr("ZX", state) || flags & (PF_IO_WORKER | PF_USER_WORKER);
    if (t->dead)
        return true;
    p->h->contended = error == EPERM && standstill_tool_has(p->h->pid, id);
    pm_fail(p->err, PM_OPERATIONAL, "process %d cannot be held: its thread %d: %s", (int)p->h->pid,
            (int)id, strerror(error));
    p->failed = true;
    return false;
}

static bool any_alive(const struct halt *h) {
    for (size_t i = 0; i < h->count; i++)
        if (!h->thread[i].dead)
            return true;
    return false;
}

// Only a thread that runs makes another one. So when all that are known have stopped, and the list
// has no others, there are no others.
bool halt_begin(struct halt *h, struct pm_error *err) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)h->pid);
    struct pass p = {.h = h, .err = err, .grown = true};
    bool there = true;
    h->contended = false;
    while (there && p.grown) {
        p.grown = false;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        there = fd >= 0 && pm_os_each_name(fd, visit, &p);
        if (fd >= 0)
            close(fd);
        if (p.failed)
            return false;
        for (size_t i = 0; i < h->count; i++) {
            struct halt_thread *t = &h->thread[i];
            if (t->dead || t->stopped || halt_await(t) || t->dead)
                continue;
            pm_fail(err, PM_OPERATIONAL,
                    "process %d cannot be held: its thread %d does not stop (it waits for a "
                    "vfork or a disk, or is frozen); nothing was changed: try again",
                    (int)h->pid, (int)t->id);
            return false;
        }
    }
    there = there && any_alive(h);
    if (!there)
        pm_fail(err, PM_OPERATIONAL, "process %d has ended", (int)h->pid);
    return there;
}

// Who gives up has asked some to stop that have not come to it yet. Their calls fail with EINTR if
// nobody mends that.
void halt_end(struct halt *h) {
    struct standstill_call call;
    for (size_t i = 0; i < h->count; i++) {
        struct halt_thread *t = &h->thread[i];
        if (!halt_stopped(t) && !t->dead && !standstill_asleep(h->pid, t->id, &call))
            halt_await(t);
        if (t->stopped)
            ptrace(PTRACE_DETACH, t->id, NULL, (void *)(uintptr_t)t->signal);
    }
    h->count = 0;
}

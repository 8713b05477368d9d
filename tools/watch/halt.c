// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "halt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "tools/common/program_status.h"
#include "trace_rights.h"

enum { PATIENCE_MS = 250, ASKED_MOST = 4, REFUSED_MOST = 100 };
#define PF_IO_WORKER 0x10ul // the kernel's own threads in a process
#define PF_USER_WORKER 0x4000ul

static bool read_registers(struct tracee *t) {
    t->dead = ptrace(PTRACE_GETREGS, t->id, NULL, &t->regs) != 0;
    if (t->dead)
        t->stop = TRACEE_RUNS;
    return !t->dead;
}

// It is asked more than once: when that was done first, it may have had another id, before it
// executed a program.
bool halt_await(struct tracee *t) {
    for (unsigned i = 1; !tracee_await(t, PATIENCE_MS); i++) {
        if (t->dead || i == ASKED_MOST)
            return false;
        tracee_ask(t);
    }
    return read_registers(t);
}

static struct tracee *add(struct halt *h, pid_t id) {
    if (h->count == h->room) {
        size_t room = h->room ? h->room * 2 : 64;
        struct tracee *more = realloc(h->thread, room * sizeof *more);
        if (!more)
            return NULL;
        h->thread = more;
        h->room = room;
    }
    h->thread[h->count] = (struct tracee){.id = id};
    return &h->thread[h->count++];
}

struct pass {
    struct halt *h;
    struct pm_error *err;
    bool grown, failed;
    unsigned refused; // how often
};

// The kernel refuses one that has died just now, too, and by then another thread that has executed
// a program may have its id.
static bool may_be_another(struct pass *p, int error) {
    return error == EPERM && p->refused++ < REFUSED_MOST;
}

// NULL: it is new, and there is no memory. A thread that has executed a program has the id of the
// first one, which has died: it is new, too.
static struct tracee *find(struct halt *h, pid_t id, bool *is_new) {
    for (size_t i = 0; i < h->count; i++) {
        struct tracee *t = &h->thread[i];
        if (t->id != id)
            continue;
        bool stands = t->stop && tracee_stands(t);
        *is_new = (t->dead || (t->stop && !stands)) && !tracee_has_ended(id);
        if (*is_new)
            *t = (struct tracee){.id = id};
        return t;
    }
    *is_new = true;
    return add(h, id);
}

static bool visit(pid_t id, void *arg) {
    struct pass *p = arg;
    unsigned long flags = 0;
    bool is_new;
    struct tracee *t = find(p->h, id, &is_new);
    if (t && !is_new)
        return true;
    if (!t) {
        pm_fail(p->err, PM_OPERATIONAL, "no memory for the threads of process %d", (int)p->h->pid);
        p->failed = true;
        return false;
    }
    p->grown |= tracee_seize(t, 0);
    if (t->seized)
        return true;
    int error = errno;
    char state = program_state(p->h->pid, id, &flags);
    t->dead = !state || strchr("ZX", state) || flags & (PF_IO_WORKER | PF_USER_WORKER);
    if (t->dead)
        return true;
    if (may_be_another(p, error)) {
        *t = p->h->thread[--p->h->count];
        p->grown = true;
        return true;
    }
    p->h->contended = error == EPERM && trace_tool_has(p->h->pid, id);
    pm_fail(p->err, PM_OPERATIONAL, "process %d cannot be held: its thread %d: %s", (int)p->h->pid,
            (int)id, pm_strerror(error));
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
    struct pass p = {.h = h, .err = err, .grown = true};
    bool there = true;
    h->contended = false;
    while (there && p.grown) {
        p.grown = false;
        there = tracee_each(h->pid, visit, &p);
        if (p.failed)
            return false;
        for (size_t i = 0; i < h->count; i++) {
            struct tracee *t = &h->thread[i];
            if (t->dead || t->stop || halt_await(t) || t->dead)
                continue;
            pm_fail(err, PM_OPERATIONAL,
                    "process %d cannot be held: its thread %d does not stop (it waits for a "
                    "vfork or a disk, or is frozen); nothing was changed: try again",
                    (int)h->pid, (int)t->id);
            return false;
        }
    }
    for (size_t i = 0; i < h->count; i++)
        if (h->thread[i].stop) // of who has the id now
            read_registers(&h->thread[i]);
    there = there && any_alive(h);
    if (!there)
        pm_fail(err, PM_OPERATIONAL, "process %d has ended", (int)h->pid);
    return there;
}

void halt_end(struct halt *h) {
    size_t kept = 0;
    for (size_t i = 0; i < h->count; i++)
        if (!tracee_let_go(&h->thread[i], h->pid))
            h->thread[kept++] = h->thread[i];
    h->count = kept;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "standstill.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "patience.h"
#include "tools/common/program_status.h"
#include "trace_rights.h"
#include "tracee.h"

// How long threads could run that do not come to rest. On a busy machine that may take longer; but
// who has been stopped meanwhile does not wait for more than PATIENCE_MAX_MS.
enum { PATIENCE_MS = 2000, PATIENCE_MAX_MS = 30000, AGAIN_MAX = 1000, TICK_NS = 20000 };

struct thread {
    struct tracee trace;
    bool theirs; // another of these tools has it
    struct patience patience;
    // While it was asleep: how often it had been switched away from a processor.
    uint64_t switches;
    uint64_t seen; // in which look
};

struct hold {
    pid_t pid;
    void (*fn)(void *arg);
    void *arg;
    struct thread *thread;
    size_t count, room;
    bool restless;           // in this look at the threads, one was running, or had been
    bool failed;             // `result` and `err` say why
    uint64_t looks;          // how many
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
    struct tracee_call call;
    return read_switches(h, t->trace.id, &t->switches) &&
           (t->switches == UINT64_MAX || tracee_asleep(h->pid, t->trace.id, &call));
}

static bool still_sleeps(const struct hold *h, const struct thread *t) {
    uint64_t switches;
    struct tracee_call call;
    return t->switches == UINT64_MAX ||
           (tracee_asleep(h->pid, t->trace.id, &call) && read_switches(h, t->trace.id, &switches) &&
            switches == t->switches);
}

// ---- stopping -----------------------------------------------------------------------------------

// The kernel's own threads in the process (io_uring's) cannot be traced. They come to rest by
// themselves.
static void look_refused(struct hold *h, struct thread *t) {
    int error = errno;
    t->theirs = error == EPERM && trace_tool_has(h->pid, t->trace.id);
    if (error == ESRCH)
        t->switches = UINT64_MAX;
    else if (trace_allowed(h->pid, h->err))
        begins_to_sleep(h, t);
    else
        fail(h, STANDSTILL_REFUSED);
}

static void stop(struct hold *h, struct thread *t) {
    if (!h->began)
        h->began = patience_now_ns();
    if (!tracee_seize(&t->trace, 0))
        look_refused(h, t);
}

// A thread that was asked to stop may be asleep in the kernel, where it does not hear that: it
// waits for a disk, or for its vfork. It stops before it returns to the program.
static void watch(struct hold *h, struct thread *t) {
    bool stood = t->trace.stop != TRACEE_RUNS;
    if (stood && tracee_stands(&t->trace))
        return;
    t->trace.stop = TRACEE_RUNS; // one that stood was killed, perhaps for another program
    bool stands = t->trace.seized && tracee_look(&t->trace);
    bool died = t->trace.dead && t->switches != UINT64_MAX;
    if (died)
        t->switches = UINT64_MAX;
    h->restless |= stood || stands || died; // it has run since the last look
    if (stands || still_sleeps(h, t))
        return;
    h->restless = true;
    t->theirs = false;
    if (!t->trace.seized)
        stop(h, t);
    else if (!begins_to_sleep(h, t))
        tracee_ask(&t->trace); // once more: it may have been asked by the id that it had before
    uint64_t chance = patience_chance(&t->patience, h->pid, t->trace.id);
    if (!t->theirs && chance > h->chance)
        h->chance = chance;
}

// ---- all threads --------------------------------------------------------------------------------

static struct thread *find(struct hold *h, pid_t id) {
    for (size_t i = 0; i < h->count; i++)
        if (h->thread[i].trace.id == id)
            return &h->thread[i];
    return NULL;
}

static struct thread *add(struct hold *h) {
    if (h->count == h->room) {
        size_t room = h->room ? h->room * 2 : 64;
        struct thread *more = realloc(h->thread, room * sizeof *more);
        if (!more) {
            pm_fail(h->err, PM_OPERATIONAL, "no memory for the threads of process %d", (int)h->pid);
            fail(h, STANDSTILL_REFUSED);
            return NULL;
        }
        h->thread = more;
        h->room = room;
    }
    return &h->thread[h->count++];
}

// Whoever has made it has run.
static void begin(struct hold *h, struct thread *t, pid_t id) {
    *t = (struct thread){.trace = {.id = id}};
    h->restless = true;
    h->chance = h->passed;
    if (!begins_to_sleep(h, t))
        stop(h, t);
}

// The first thread of the process that had died lives again: another one has executed a program,
// and has its id now.
static bool visit(pid_t id, void *arg) {
    struct hold *h = arg;
    if (h->failed)
        return false;
    struct thread *t = find(h, id);
    bool is_new = !t || (t->switches == UINT64_MAX && !tracee_has_ended(id));
    if (!t && !(t = add(h)))
        return false;
    if (is_new)
        begin(h, t, id);
    else
        watch(h, t);
    t->seen = h->looks;
    return true;
}

// Who is no longer listed has ended, or has another id since it executed a program. It has run
// until then.
static void miss(struct hold *h) {
    for (size_t i = 0; i < h->count; i++) {
        struct thread *t = &h->thread[i];
        if (t->seen == h->looks || t->switches == UINT64_MAX)
            continue;
        h->restless = true;
        h->chance = h->passed;
        if (tracee_has_ended(t->trace.id))
            t->switches = UINT64_MAX;
    }
}

// False: the process has ended.
static bool look_at_all(struct hold *h) {
    uint64_t now = patience_now_ns();
    h->passed = h->looked ? now - h->looked : 0;
    h->looked = now;
    h->looks++;
    h->restless = false;
    h->chance = 0;
    bool good = tracee_each(h->pid, visit, h);
    miss(h);
    if (!good && !h->failed)
        fail(h, STANDSTILL_GONE);
    return good && !h->failed;
}

// Only a thread that runs makes another one. So two looks in a row that find nobody running have
// seen all threads.
static bool gather(struct hold *h) {
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
            tracee_nap(TICK_NS);
    }
    return true;
}

static void let_go(struct hold *h) {
    for (size_t i = 0; i < h->count; i++)
        tracee_let_go(&h->thread[i].trace, h->pid);
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

enum standstill_result standstill(pid_t pid, void fn(void *arg), void *arg, uint64_t *pause_ns,
                                  struct pm_error *err) {
    struct hold h = {.pid = pid, .fn = fn, .arg = arg, .err = err, .result = STANDSTILL_DONE};
    pthread_t thread;
    sigset_t alarm, mask;
    *pause_ns = 0;
    if (!trace_allowed(pid, err))
        return STANDSTILL_REFUSED;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM); // it is for the thread that seizes
    pthread_sigmask(SIG_BLOCK, &alarm, &mask);
    int error = pthread_create(&thread, NULL, hold_all, &h);
    if (!error)
        pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (error) {
        pm_fail(err, PM_OPERATIONAL, "no thread to hold process %d with: %s", (int)pid,
                pm_strerror(error));
        return STANDSTILL_REFUSED;
    }
    *pause_ns = h.ended - h.began;
    free(h.thread);
    return h.result;
}

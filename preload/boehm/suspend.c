// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program's own holds: of one registered thread (javaxfc.h), and of all (gc.h).
//
// A thread of which that is asked waits in the handler of libgc's signal, outside of the allocator.
// Its word says how far it is:
//
//   0   it runs    ASKED   it is to rest    RESTS   it waits; the word is the futex
//
// The wait is a call that holds know (threads/calls.h), so collections and commits need no answer
// of the thread's. Its registers lie on its stack, where the collector looks.
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/lock.h"
#include "boehm.h"
#include "notes.h"
#include "suspend.h"
#include "threads/calls.h"
#include "threads/hold.h"
#include "threads/tasks.h"

enum { ASKED = 1, RESTS = 2 };

#define PATIENCE_MS 10000
#define SIGNAL_SUSPEND SIGPWR // what bdwgc documents; collections use another signal

int pm_gc_suspend_signal = SIGNAL_SUSPEND;
EXPORT void GC_set_suspend_signal(int signal) { pm_gc_suspend_signal = signal; }
EXPORT int GC_get_suspend_signal(void) { return pm_gc_suspend_signal; }

// ---- one thread ---------------------------------------------------------------------------------

static __thread _Atomic uint32_t word __attribute__((tls_model("initial-exec")));
// By pthread_t. `block`: the thread's id, 0: it has ended, and nobody has joined it; `data`: its
// word; `how`: these two, and a number by which threads with the same pthread_t differ.
enum { SUSPENDED = 1, DETACHED = 2, SERIAL = 4 };
static struct notes threads;
static pthread_t first; // it needs no registering
static struct note first_note;

static void note_first(void) {
    first = pthread_self();
    first_note = (struct note){.block = (uintptr_t)gettid(), .data = (void *)&word};
}
__attribute__((constructor)) static void begin(void) {
    if (getpid() == gettid())
        note_first();
}

// Only the calling thread is left.
static void forked(void) {
    uint32_t i = notes_find(&threads, pthread_self());
    uint32_t how = i ? threads.note[i].how : 0;
    NOTES_EACH(other, &threads)
    notes_remove(&threads, other);
    note_first();
    if (i && (i = notes_add(&threads, pthread_self()))) {
        threads.note[i].block = (uintptr_t)gettid();
        threads.note[i].data = (void *)&word;
        threads.note[i].how = how;
    }
}

// With the lock. Before the first note and before the first look at one.
static void watch_forks(void) {
    static bool done;
    done = done || pthread_atfork(NULL, NULL, forked) == 0;
}

static struct note *find(pthread_t thread) {
    watch_forks();
    uint32_t i = notes_find(&threads, thread);
    if (!i && thread == first)
        first_note.block = first_note.block ? (uintptr_t)getpid() : 0;
    return i ? &threads.note[i] : thread == first ? &first_note : NULL;
}

// A pthread_t may come again as soon as its thread was joined.
void pm_gc_threads_add(bool detached) {
    static uint32_t serial;
    pm_gc_lock();
    watch_forks();
    uint32_t i = notes_find(&threads, pthread_self());
    if (!i)
        i = notes_add(&threads, pthread_self());
    if (i) {
        threads.note[i].block = (uintptr_t)gettid();
        threads.note[i].data = (void *)&word;
        threads.note[i].how = (serial += SERIAL) | (detached ? DETACHED : 0);
    }
    pm_gc_unlock();
}

void pm_gc_threads_end(void) {
    pm_gc_lock();
    uint32_t i = notes_find(&threads, pthread_self());
    if (i && threads.note[i].how & DETACHED)
        notes_remove(&threads, i);
    else if (i)
        threads.note[i].block = 0;
    pm_gc_unlock();
}

void pm_gc_threads_remove(void) {
    pm_gc_lock();
    uint32_t i = notes_find(&threads, pthread_self());
    if (i)
        notes_remove(&threads, i);
    pm_gc_unlock();
}

uint32_t pm_gc_threads_serial(pthread_t thread) {
    pm_gc_lock();
    uint32_t i = notes_find(&threads, thread);
    uint32_t serial = i ? threads.note[i].how / SERIAL : 0;
    pm_gc_unlock();
    return serial;
}

void pm_gc_threads_joined(pthread_t thread, uint32_t serial) {
    pm_gc_lock();
    uint32_t i = notes_find(&threads, thread);
    if (i && threads.note[i].how / SERIAL == serial)
        notes_remove(&threads, i);
    pm_gc_unlock();
}

void pm_gc_threads_detached(pthread_t thread) {
    pm_gc_lock();
    uint32_t i = notes_find(&threads, thread);
    if (i && threads.note[i].block)
        threads.note[i].how |= DETACHED;
    else if (i)
        notes_remove(&threads, i);
    pm_gc_unlock();
}

static void rest(void) {
    struct pm_call call = {.by_futex = true};
    pm_call_enter(&call);
    while (atomic_load_explicit(&word, memory_order_acquire) == RESTS)
        pm_futex_wait(&word, RESTS);
    pm_call_leave(&call);
}

// Where the thread may not rest it goes on, and is asked again.
static void hear(int number, siginfo_t *info, void *context) {
    int saved = errno;
    uint32_t asked = ASKED;
    (void)number, (void)info;
    if (pm_hold_may_rest(context) && atomic_compare_exchange_strong(&word, &asked, RESTS)) {
        pm_futex_wake(&word, 1);
        rest();
    }
    errno = saved;
}

static bool hears(void) {
    static bool done;
    struct sigaction action = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigfillset(&action.sa_mask);
    done = done || (pm_hold_prepare() && sigaction(pm_gc_suspend_signal, &action, NULL) == 0);
    return done;
}

#define AGAIN_US 1000 // then it is asked once more

// With the lock, for which the other thread may wait: then it rests there, also at its end.
static void ask(struct note *n) {
    _Atomic uint32_t *its = n->data;
    uint32_t asked = 0;
    while (n->block && asked != RESTS) {
        pid_t id = (pid_t)n->block;
        if (pm_task_is_dead(id) ||
            syscall(SYS_tgkill, getpid(), id, asked ? pm_gc_suspend_signal : 0) != 0) {
            n->block = 0; // it has ended, and was not unregistered
            return;
        }
        if (!asked)
            atomic_store(its, ASKED);
        else
            pm_futex_wait_us(its, ASKED, AGAIN_US);
        asked = atomic_load(its);
    }
}

EXPORT void GC_suspend_thread(pthread_t thread) {
    pm_gc_init();
    pm_gc_lock();
    struct note *n = find(thread);
    bool self = n && pthread_equal(thread, pthread_self()), now = n && !(n->how & SUSPENDED);
    if (now && hears()) {
        n->how |= SUSPENDED;
        if (self)
            atomic_store(&word, RESTS);
        else
            ask(n);
    }
    pm_gc_unlock();
    if (self && now)
        rest();
}

EXPORT void GC_resume_thread(pthread_t thread) {
    pm_gc_init();
    pm_gc_lock();
    struct note *n = find(thread);
    bool rests = n && n->how & SUSPENDED && n->block;
    if (n)
        n->how &= ~(uint32_t)SUSPENDED;
    if (rests) {
        atomic_store((_Atomic uint32_t *)n->data, 0);
        pm_futex_wake(n->data, 1);
    }
    pm_gc_unlock();
}

EXPORT int GC_is_thread_suspended(pthread_t thread) {
    pm_gc_init();
    pm_gc_lock();
    const struct note *n = find(thread);
    int suspended = n && n->how & SUSPENDED;
    pm_gc_unlock();
    return suspended;
}

// ---- all threads --------------------------------------------------------------------------------

static bool stopped; // changes with the lock

// The lock is held from the first to the second: nobody collects meanwhile.
EXPORT void GC_stop_world_external(void) {
    pm_gc_init();
    pm_gc_lock();
    stopped = true;
    if (!pm_hold_for_program(PATIENCE_MS))
        pm_gc_abort("GC_stop_world_external: a thread does not stop within 10 seconds; see which "
                    "one waits in the kernel (state D in `ps -L`), or is stopped by a debugger");
}

EXPORT void GC_start_world_external(void) {
    if (!stopped)
        pm_gc_abort("GC_start_world_external: the world is not stopped");
    stopped = false;
    pm_release_for_program();
    pm_gc_unlock();
}

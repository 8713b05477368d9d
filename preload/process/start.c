// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "start.h"

#include <errno.h>

#include "base/cancel.h"
#include "base/event_log.h"
#include "base/fallback.h"
#include "base/options.h"
#include "blocks/age.h"
#include "blocks/stats.h"
#include "fork/fork.h"
#include "media/persist.h"
#include "open.h"
#include "stacks.h"
#include "state/phase.h"
#include "thread_end.h"

static __thread bool thread_ending __attribute__((tls_model("initial-exec")));
// A thread that got no cache asks for one again after this many requests. Asking takes long where
// there is no memory.
#define CACHELESS 250
static __thread uint8_t cacheless __attribute__((tls_model("initial-exec")));

static void thread_exit(void *cache) {
    pm_cancel_hold(); // for good: a cancellation of the thread may still arrive
    thread_ending = true;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(cache);
    pm_age_notice();
    pm_age();
    pm_inside_leave(); // handlers may run
}

void pm_process_give_caches(void) { pm_thread_end_begin(thread_exit); }

// ---- waiting ------------------------------------------------------------------------------------

// Opening even a volatile heap costs as much as a small program's whole start. So it waits until
// the program has made this number of requests, or uses half of the fallback arena's small part.
#define FEW_REQUESTS 500

static bool called; // pmalloc_open() was called before anything else
static _Atomic unsigned requests;
static _Atomic bool hopeless; // there was no room for the heap when it was to be opened

// A setting that says or does something at the start or at the end does not wait.
static bool may_wait(void) {
    const struct pm_options *o = &pm_options;
    const struct pm_chosen *chosen = pm_open_chosen();
    return chosen->by_call || (chosen->without_heap && !o->verbose.number && !o->stats.number &&
                               !o->leaks.number && !o->background.number && !o->topology.text[0]);
}

static bool asks_for_little(void) {
    if (pm_open_chosen()->by_call)
        return pm_fallback_has_large_room(PM_FALLBACK_LARGE / 2);
    return atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed) < FEW_REQUESTS &&
           pm_fallback_has_room(PM_FALLBACK_SMALL / 2);
}

// ---- the start ----------------------------------------------------------------------------------

// False: a process that has waited has no room for a heap any more. Its requests are served while
// the fallback arena lasts, and then fail.
static bool open_here(bool first) {
    struct pm_error err;
    hopeless = pm_open_heap(&err) != PM_OK;
    if (hopeless && first)
        pm_open_refuse(&err);
    if (!hopeless)
        pm_process_give_caches();
    return !hopeless;
}

// By the thread that has moved the phase to STARTING.
static void start_here(bool first, bool patient) {
    int saved = errno;
    struct pm_error err;
    enum pm_phase next = PM_WAITING;
    if (first)
        pm_persist_exit = PM_EXIT_START; // until main runs
    if (first && pm_preload_check)
        pm_preload_check();
    if (first)
        pm_fork_init();
    if (first && pm_open_decide(called, &err) != PM_OK)
        pm_open_refuse(&err);
    if (!((patient || (first && pm_open_chosen()->by_call)) && may_wait()) && open_here(first))
        next = PM_READY;
    if (first && pm_event_log_wanted())
        pm_event_log_say_failure();
    pm_phase_started(next);
    if (next == PM_READY && pm_phase_main_runs()) // it has waited beyond pm_process_before_main()
        pm_phase_move(PM_READY, PM_RUNNING);
    errno = saved;
}

// `patient`: whether WAITING is far enough. One thread starts, others wait for it.
static void advance(bool patient) {
    enum pm_phase seen;
    while ((seen = pm_phase()) < PM_READY) {
        if (seen == PM_STARTING) {
            if (pm_phase_starts_here())
                return; // called by start_here(): this very thread opens the heap
            pm_phase_await_start();
        } else if (seen == PM_WAITING && (hopeless || (patient && asks_for_little()))) {
            return;
        } else if (pm_phase_claim(seen)) {
            start_here(seen == PM_COLD, patient && seen == PM_COLD);
            return;
        }
    }
}

void pm_process_start(void) { advance(false); }

void pm_process_begin(void) { advance(true); }

void pm_process_begin_called(void) {
    if (pm_phase() == PM_COLD)
        called = true;
    advance(true);
}

#define NOT_MUCH ((size_t)8 << 20)

void pm_process_start_for(size_t bytes) {
    if (!pm_phase_serves())
        advance(pm_open_chosen()->by_call && bytes <= NOT_MUCH);
}

void pm_process_ask(void) {
    if (!pm_phase_serves())
        advance(pm_open_chosen()->by_call);
}

enum pm_route pm_thread_enter(void) {
    if (!pm_phase_serves())
        advance(pm_phase() == PM_WAITING);
    if (!pm_phase_serves())
        return PM_ROUTE_FALLBACK;
    if (thread_ending || pm_stacks_on || (cacheless && cacheless--))
        return PM_ROUTE_DIRECT;
    int saved = errno;
    struct pm_tcache *t = pm_thread_end_is_heard() ? pm_tcache_create() : NULL;
    if (!t) {
        cacheless = CACHELESS;
        return PM_ROUTE_DIRECT;
    }
    if (pm_tcache != &pm_no_tcache) { // meanwhile a signal handler of this thread has got a cache
        pm_tcache_destroy(t);
        return PM_ROUTE_CACHE;
    }
    pm_tcache_use(t);
    pm_thread_end_note(t); // may allocate: the cache is in place already
    errno = saved;
    return PM_ROUTE_CACHE;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// When to collect, and the steps of a collection:
//
//   lock held, world runs     1 the last sweep ends  2 the program's callbacks
//   world held                3 roots, and all that they reach  4 short links  5 finalizers
//                             6 long links, toggle references  7 dead blocks are listed
//   world runs                8 finalizers are called  9 dead blocks are freed, as blocks are
//                               asked for
//
// A collection is due when as many bytes were allocated since the last one as bdwgc would allow:
// what the marker had to look at, divided by GC_free_space_divisor.
#include "boehm.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/message.h"
#include "live/sweep.h"
#include "live/trace.h"
#include "process/entry.h"
#include "process/start.h"
#include "process/world.h"
#include "settings.h"

#define TICK PM_GC_TICK
#define SWEPT_PER_TICK (4 * TICK) // bytes
#define LEAST ((uint64_t)3 << 19) // bytes between two collections

static uint64_t due = LEAST;
static _Atomic bool swept = true;

// ---- a collection -------------------------------------------------------------------------------

static void root(const void *at, size_t len, void *unused) {
    (void)unused;
    uintptr_t from = (uintptr_t)at, to = from + len, end;
    for (; from < to; from = end) {
        bool excluded = pm_gc_root_excluded(from, &end);
        end = end < to ? end : to;
        if (excluded)
            continue;
        pm_trace_range((void *)from, end - from);
        pm_gc_figures.roots += end - from;
    }
}

static void settle_the_dead(void) {
    pm_gc_links_clear(false);
    pm_gc_finalizers_find();
    pm_gc_links_drop_dead(false);
    pm_gc_toggles_clear();
    pm_gc_links_clear(true);
    pm_gc_links_drop_dead(true);
}

static void count(const struct pm_sweep_sum *sum) {
    pm_gc_figures.live = sum->composite + sum->atomic;
    pm_gc_figures.dead = sum->dead;
    uint64_t looked_at = 2 * sum->composite + sum->atomic / 4 + pm_gc_figures.roots;
    due = looked_at / (GC_free_space_divisor ? GC_free_space_divisor : 1);
    if (due < LEAST)
        due = LEAST;
    if (due < pm_gc_settings.min_allocated)
        due = pm_gc_settings.min_allocated;
}

static int mark(void *stop, struct pm_error *err) {
    pm_gc_event(EVENT_POST_STOP_WORLD);
    int status = pm_trace_begin(err);
    if (status != PM_OK)
        return status;
    pm_gc_event(EVENT_MARK_START);
    pm_gc_figures.roots = 0;
    status = pm_world_roots(root, NULL, err);
    pm_trace_explicit();
    pm_gc_each_root();
    pm_gc_toggles_mark();
    pm_gc_finalizers_mark();
    pm_trace_all();
    pm_gc_event(EVENT_MARK_END);
    if (status == PM_OK && (*(int (**)(void))stop)())
        status = pm_fail(err, PM_OPERATIONAL, "stopped");
    if (status == PM_OK)
        settle_the_dead();
    struct pm_sweep_sum sum = pm_sweep_list(status == PM_OK);
    count(&sum);
    pm_gc_figures.markers = pm_trace_took_part();
    pm_trace_end();
    pm_gc_event(EVENT_PRE_START_WORLD);
    return status;
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// In the mode that finds leaks, the program was to free it.
static void release(void *block, unsigned kind) {
    const struct pm_col_kind *k = &pm_col_kinds[kind];
    if (GC_find_leak)
        pm_event(PM_EV_GC_LEAK, "GC: leaked object at %p of appr. %zu bytes (%s)", block,
                 pm_usable_size(block), k->descriptor || k->add_size ? "composite" : "atomic");
    pm_free(block);
}

static void sweep(uint64_t bytes) {
    if (!atomic_load_explicit(&swept, memory_order_relaxed) && !pm_sweep(bytes, release))
        atomic_store_explicit(&swept, true, memory_order_relaxed);
}

// The lock is held once, by this thread.
static bool collect_locked(int (*stop)(void)) {
    struct pm_error err = {0};
    sweep(UINT64_MAX);
    if (stop())
        return false;
    uint64_t began = now();
    pm_gc_event(EVENT_START);
    if (pm_gc_settings.start)
        pm_gc_settings.start();
    pm_gc_toggles_ask();
    GC_gc_no++;
    pm_gc_event(EVENT_PRE_STOP_WORLD);
    pm_gc_marking = true;
    int status = pm_world_hold(mark, &stop, &err);
    pm_gc_marking = false;
    pm_gc_event(EVENT_POST_START_WORLD);
    pm_gc_event(EVENT_RECLAIM_START);
    atomic_store_explicit(&swept, status != PM_OK, memory_order_relaxed);
    pm_gc_event(EVENT_RECLAIM_END);
    if (status == PM_OK || !stop()) {
        pm_gc_figures.before += pm_gc_bytes_since();
        pm_gc_figures.since = 0;
        pm_gc_figures.freed_since = 0;
        pm_gc_budget = TICK;
    }
    if (status != PM_OK && strcmp(err.text, "stopped") != 0)
        pm_event(PM_EV_GC_WARNING, "GC warning: no collection: %s", err.text);
    pm_gc_figures.milliseconds += now() - began;
    pm_gc_event(EVENT_END);
    return status == PM_OK;
}

bool pm_gc_collect(int (*stop)(void)) {
    bool done = false;
    int saved = errno;
    pm_gc_init();
    if (pm_nested() || !pm_phase_serves())
        return false;
    pm_gc_lock();
    if (!pm_gc_marking && pm_gc_locked_once() && !GC_dont_gc)
        done = collect_locked(stop);
    pm_gc_unlock();
    pm_gc_finalizers_due();
    errno = saved;
    return done;
}

void pm_gc_sweep_all(void) {
    pm_gc_lock();
    if (pm_gc_locked_once())
        sweep(UINT64_MAX);
    pm_gc_unlock();
}

// ---- while blocks are asked for -----------------------------------------------------------------

static int never(void) { return 0; }

static bool is_due(void) {
    return atomic_load_explicit(&pm_gc_figures.since, memory_order_relaxed) >= due && !GC_dont_gc &&
           !pm_gc_settings.manual;
}

__attribute__((noinline)) void pm_gc_tick(void) {
    if (pm_nested() || pm_gc_marking)
        return;
    pm_gc_init();
    int saved = errno;
    long used = pm_gc_budget ? TICK - pm_gc_budget : 0;
    pm_gc_budget = TICK;
    atomic_fetch_add_explicit(&pm_gc_figures.since, (uint64_t)used, memory_order_relaxed);
    if (is_due()) {
        pm_gc_collect(pm_gc_settings.stop);
    } else if (!atomic_load_explicit(&swept, memory_order_relaxed) && pm_gc_trylock()) {
        if (pm_gc_locked_once())
            sweep(SWEPT_PER_TICK + (uint64_t)used * 2);
        pm_gc_unlock();
    }
    pm_gc_finalizers_due();
    errno = saved;
}

// ---- names --------------------------------------------------------------------------------------

EXPORT void GC_gcollect(void) {
    pm_gc_collect(pm_gc_settings.stop);
    pm_gc_sweep_all();
}

EXPORT void GC_gcollect_and_unmap(void) {
    pm_gc_collect(never);
    pm_gc_sweep_all();
    pm_trim();
}

EXPORT int GC_try_to_collect(int (*stop)(void)) { return pm_gc_collect(stop); }

// Returns whether there is more to do. A sweep is left over.
EXPORT int GC_collect_a_little(void) {
    pm_gc_init();
    if (is_due())
        pm_gc_collect(pm_gc_settings.stop);
    return 0;
}

EXPORT void GC_start_incremental_collection(void) {}
EXPORT void GC_enable_incremental(void) { pm_gc_init(); }
EXPORT int GC_is_incremental_mode(void) { return 0; }
EXPORT int GC_incremental_protection_needs(void) { return 0; }

EXPORT void GC_disable(void) {
    pm_gc_lock();
    GC_dont_gc++;
    pm_gc_unlock();
}
EXPORT void GC_enable(void) {
    pm_gc_lock();
    GC_dont_gc--;
    pm_gc_unlock();
}
EXPORT int GC_is_disabled(void) { return GC_dont_gc != 0; }

EXPORT void GC_alloc_lock(void) { pm_gc_lock(); }
EXPORT void GC_alloc_unlock(void) { pm_gc_unlock(); }
EXPORT void *GC_call_with_alloc_lock(gc_fn *fn, void *arg) {
    pm_gc_lock();
    void *result = fn(arg);
    pm_gc_unlock();
    return result;
}
EXPORT void GC_atfork_prepare(void) {}
EXPORT void GC_atfork_parent(void) {}
EXPORT void GC_atfork_child(void) {}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "runtime.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bitmaps.h"
#include "choice.h"
#include "clean.h"
#include "extent.h"
#include "fork.h"
#include "guard.h"
#include "options.h"
#include "os.h"
#include "persist.h"
#include "pmalloc.h"
#include "start_line.h"
#include "stats.h"

static _Atomic uint32_t phase;  // enum pm_phase; also the futex that later threads wait on
static _Atomic(void *) starter; // the thread that opens the heap, by the address of its pm_tcache
static struct pm_lock runtime_lock;
static pthread_key_t thread_key;
static __thread bool thread_ending __attribute__((tls_model("initial-exec")));
static struct pm_choice choice;
static struct pm_recovery recovery;

enum pm_phase pm_phase(void) {
    return (enum pm_phase)atomic_load_explicit(&phase, memory_order_acquire);
}

const struct pm_recovery *pm_runtime_recovery(void) { return &recovery; }

bool pm_runtime_is_root(const void *p) { return pm_heap.persistent && pm_collector.captured(p); }

bool pm_runtime_default_heap(void) { return choice.default_heap; }

// ---- start -------------------------------------------------------------------------------------------

// Forgets everything in a heap that nothing can reach.
static int empty_heap(struct pm_error *err) {
    // A pinned file keeps its length, as one gap.
    if (!pm_log_reset() || (!pm_heap_set_frontier(0) && pm_extent_fill_gaps(true, err) != PM_OK))
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot empty the heap: %s", pm_heap.dir,
                       strerror(errno));
    return PM_OK;
}

// The heap as chosen, recovered or emptied; maps what the process will run on.
static int open_persistent(struct pm_error *err) {
    int status = pm_collector.prepare(err);
    if (status == PM_OK)
        status = pm_heap_map(err);
    if (status != PM_OK) {
        if (pm_heap.created)
            pm_heap_remove();
        pm_heap_release();
        return status;
    }
    if (pm_heap_has_roots())
        return pm_collector.recover(true, &recovery, err);
    pm_heap_dirty();
    return empty_heap(err);
}

static int open_heap(struct pm_error *err) {
    bool secure = getauxval(AT_SECURE) != 0; // setuid: the environment is not to be trusted
    int status = pm_options_load(secure ? NULL : pm_os_environ(), err);
    if (status != PM_OK)
        return status;
    if (!(pm_heap_choose_range() && pm_pagemap_init() && pm_extent_init() && pm_slab_init() &&
          pm_arenas_init(pm_os_cores())))
        return pm_fail(err, PM_OPERATIONAL,
                       "no address space for the allocator's tables; is `ulimit -v` or "
                       "vm.overcommit_memory=2 set?");
    if (secure)
        pm_options.backing.number = PM_BACKING_VOLATILE;
    status = pm_choose_heap(&choice, err);
    if (status == PM_OK && !choice.without_heap)
        status = open_persistent(err);
    if (status != PM_OK && pm_choose_volatile(&choice, err))
        status = PM_OK;
    return status == PM_OK && choice.without_heap ? pm_heap_volatile(err) : status;
}

bool pm_runtime_wanted(void) {
    struct pm_error ignored;
    bool out;
    if (getauxval(AT_SECURE) || pm_options_load(pm_os_environ(), &ignored) != PM_OK ||
        pm_left_out(&out, &ignored) != PM_OK)
        return false;
    return !out && (pm_options.heap.text[0] || pm_options.roots.text[0]);
}

static void refuse(const struct pm_error *err) {
    if (err->status == PM_DAMAGE)
        pm_refuse(
            "%s; nothing was changed: copy the directory, ask `pmalloc-recover --check`, or set "
            "PMALLOC_HEAP to another one",
            err->text);
    pm_refuse("%s", err->text);
}

static void thread_exit(void *cache) {
    pm_guard_enter(); // for good: its cancellation may still be on the way
    thread_ending = true;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(cache);
}

static void start_here(void) {
    int saved = errno;
    if (pm_runtime_guard)
        pm_runtime_guard();
    atomic_store_explicit(&starter, &pm_tcache, memory_order_relaxed);
    struct pm_error err;
    if (open_heap(&err) != PM_OK)
        refuse(&err);
    // Without a key, pthread_setspecific() would write into somebody else's.
    if (pthread_key_create(&thread_key, thread_exit) != 0)
        pm_refuse("no thread-specific key is free for the thread caches");
    pm_fork_init();
    errno = saved;
}

void pm_runtime_start(void) {
    uint32_t seen = PM_COLD;
    if (atomic_compare_exchange_strong_explicit(&phase, &seen, PM_STARTING, memory_order_acq_rel,
                                                memory_order_acquire)) {
        start_here();
        atomic_store_explicit(&phase, PM_READY, memory_order_release);
        pm_futex_wake(&phase, 1 << 30);
        return;
    }
    if (atomic_load_explicit(&starter, memory_order_relaxed) == &pm_tcache)
        return; // called from within
    while (pm_phase() == PM_STARTING)
        pm_futex_wait(&phase, PM_STARTING);
}

enum pm_way pm_thread_enter(void) {
    if (pm_phase() <= PM_STARTING)
        pm_runtime_start();
    if (pm_phase() != PM_READY)
        return PM_WAY_BOOT;
    if (thread_ending)
        return PM_WAY_DIRECT;
    int saved = errno;
    struct pm_tcache *t = pm_tcache_create();
    if (!t)
        return PM_WAY_DIRECT;
    if (pm_tcache != &pm_no_tcache) { // a signal handler got one meanwhile
        pm_tcache_destroy(t);
        return PM_WAY_CACHE;
    }
    pm_tcache = t;
    pthread_setspecific(thread_key, t); // may allocate: the cache is in place already
    errno = saved;
    return PM_WAY_CACHE;
}

// ---- before main -------------------------------------------------------------------------------------

void pm_runtime_before_main(void) {
    struct pm_error err;
    pm_runtime_start();
    if (pm_heap.persistent && pm_collector.capture(&err) != PM_OK) {
        if (pm_heap.created)
            pm_heap_remove();
        pm_refuse("%s", err.text);
    }
    pm_fork_guard(true);
    if (pm_options.verbose.number)
        pm_start_line(&choice, &recovery);
}

// ---- locks -------------------------------------------------------------------------------------------

static void lock_bins(void (*step)(struct pm_lock *)) {
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            step(&pm_arenas[a].bin[cls].lock);
}

void pm_runtime_each_lock(void (*step)(struct pm_lock *)) {
    step(&runtime_lock);
    step(&pm_tcache_lock);
    lock_bins(step);
    step(&pm_extent_lock);
}

// ---- pmalloc.h ---------------------------------------------------------------------------------------

#define EXPORT __attribute__((visibility("default")))

EXPORT int pmalloc_set_root(unsigned slot, void *p) {
    pm_runtime_start();
    if (slot >= PM_ROOT_SLOTS || (uintptr_t)p > PM_SLOT_MAX) {
        errno = EINVAL;
        return -1;
    }
    // Not beside the end of the program, which freezes the slots (runtime_exit.c).
    pm_lock(&runtime_lock, PM_RANK_RUNTIME);
    bool open = pm_heap.persistent;
    if (open)
        pm_commit_u64(&pm_heap.super->slots.slot[slot], pm_slot_word(slot, (uint64_t)(uintptr_t)p));
    pm_unlock(&runtime_lock, PM_RANK_RUNTIME);
    if (open)
        return 0;
    errno = ENOTSUP;
    return -1;
}

EXPORT void *pmalloc_get_root(unsigned slot) {
    pm_runtime_start();
    if (slot >= PM_ROOT_SLOTS || !pm_heap.super) // which stays after the end
        return NULL;
    return (void *)(uintptr_t)pm_heap_slot(slot);
}

EXPORT int pmalloc_is_persistent(void) {
    pm_runtime_start();
    return pm_heap.persistent;
}

EXPORT const char *pmalloc_heap_path(void) {
    pm_runtime_start();
    return pm_heap.persistent ? pm_heap.dir : "";
}

EXPORT const char *pmalloc_version(void) { return "0.1.0"; }

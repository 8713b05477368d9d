// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bitmaps.h"
#include "clean.h"
#include "extent.h"
#include "options.h"
#include "os.h"
#include "persist.h"
#include "pmalloc.h"
#include "stats.h"

static _Atomic uint32_t phase;  // enum pm_phase; also the futex that later threads wait on
static _Atomic(void *) starter; // the thread that opens the heap, by the address of its pm_tcache
static struct pm_lock runtime_lock;
static pthread_key_t thread_key;
static __thread bool thread_ending __attribute__((tls_model("initial-exec")));
static bool default_heap;
static bool without_heap; // this process is to run on volatile memory
static bool closed_persistent;
static struct pm_recovery recovery;

enum pm_phase pm_phase(void) {
    return (enum pm_phase)atomic_load_explicit(&phase, memory_order_acquire);
}

bool pm_runtime_persistent(void) { return pm_heap.persistent || closed_persistent; }
const struct pm_recovery *pm_runtime_recovery(void) { return &recovery; }

// ---- which heap --------------------------------------------------------------------------------------

// Programs that must not be trusted with the environment, or that the user left out, stay volatile.
static int choose_volatile(bool secure, struct pm_error *err) {
    char name[256];
    without_heap = secure || pm_options.backing.number == PM_BACKING_VOLATILE;
    if (without_heap || !pm_options.program.text[0])
        return PM_OK;
    if (!pm_os_program_name(name, sizeof name))
        return pm_fail(err, PM_OPERATIONAL,
                       "PMALLOC_PROGRAM=%.100s: cannot find out this program's name: %s",
                       pm_options.program.text, strerror(errno));
    without_heap = fnmatch(pm_options.program.text, name, 0) != 0;
    return PM_OK;
}

static int open_named(struct pm_error *err) {
    bool wait = pm_options.busy.number == PM_BUSY_WAIT;
    int status = pm_heap_open(pm_options.heap.text, PM_OPEN_CREATE, false, err);
    if (status == PM_OK || !pm_heap.busy)
        return status;
    // A descendant of the owner inherited the environment; it runs on volatile memory, quietly.
    if (pm_heap.busy_pid == getpid() || pm_os_is_ancestor(pm_heap.busy_pid)) {
        without_heap = true;
        return PM_OK;
    }
    return wait ? pm_heap_open(pm_options.heap.text, PM_OPEN_CREATE, true, err) : status;
}

#define DEFAULT_HEAPS 10000

static int open_default(struct pm_error *err) {
    char name[256], dir[512];
    if (!pm_os_program_name(name, sizeof name))
        return pm_fail(err, PM_OPERATIONAL,
                       "cannot find out this program's name: /proc/self/exe: %s; set PMALLOC_HEAP",
                       strerror(errno));
    int len = snprintf(dir, sizeof dir, "/dev/shm/pmalloc-%u", (unsigned)geteuid());
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot make the default heaps' directory: %s", dir,
                       strerror(errno));
    struct stat st;
    if (lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 022))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is not a directory of user %u alone; remove it or set PMALLOC_HEAP", dir,
                       (unsigned)geteuid());
    default_heap = true;
    for (unsigned n = 1; n <= DEFAULT_HEAPS; n++) {
        if (n == 1)
            snprintf(dir + len, sizeof dir - (size_t)len, "/%s", name);
        else
            snprintf(dir + len, sizeof dir - (size_t)len, "/%s.%u", name, n);
        int status = pm_heap_open(dir, PM_OPEN_CREATE, false, err);
        if (status == PM_OK || !pm_heap.busy)
            return status;
    }
    return pm_fail(err, PM_OPERATIONAL, "all default heaps of %s are busy", name);
}

// ---- start -------------------------------------------------------------------------------------------

// Forgets everything in a heap that nothing can reach.
static int empty_heap(struct pm_error *err) {
    if (!pm_log_reset() || !pm_heap_set_frontier(0))
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot empty the heap: %s", pm_heap.dir,
                       strerror(errno));
    return PM_OK;
}

static int open_persistent(struct pm_error *err) {
    int status = pm_options.heap.text[0] ? open_named(err) : open_default(err);
    if (without_heap)
        return PM_OK;
    if (status == PM_OK)
        status = pm_collector.prepare(err);
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

static void open_heap(void) {
    struct pm_error err;
    bool secure = getauxval(AT_SECURE) != 0;
    int status = pm_options_load(secure ? NULL : pm_os_environ(), &err);
    if (status == PM_OK && !(pm_heap_choose_range() && pm_pagemap_init() && pm_extent_init() &&
                             pm_slab_init() && pm_arenas_init(pm_os_cores())))
        status =
            pm_fail(&err, PM_OPERATIONAL,
                    "no address space for the allocator's tables (is `ulimit -v` set? unset it)");
    if (status == PM_OK)
        status = choose_volatile(secure, &err);
    if (status == PM_OK && !without_heap)
        status = open_persistent(&err);
    // A default heap is a courtesy: where there can be none, and nothing was asked of it, do without.
    if (status == PM_OPERATIONAL && default_heap && !pm_heap.persistent &&
        !pm_options.roots.text[0]) {
        pm_say("%s; running on volatile memory", err.text);
        status = PM_OK;
        without_heap = true;
    }
    if (status == PM_OK && without_heap)
        status = pm_heap_volatile(&err);
    if (status == PM_DAMAGE)
        pm_refuse(
            "%s; nothing was changed: copy the directory, ask `pmalloc-recover --check`, or set "
            "PMALLOC_HEAP to another one",
            err.text);
    if (status != PM_OK)
        pm_refuse("%s", err.text);
}

static void thread_exit(void *cache) {
    thread_ending = true;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(cache);
}

static void fork_prepare(void);
static void fork_parent(void);
static void fork_child(void);

static void start_here(void) {
    int saved = errno;
    atomic_store_explicit(&starter, &pm_tcache, memory_order_relaxed);
    open_heap();
    // Without a key, pthread_setspecific() would write into somebody else's.
    if (pthread_key_create(&thread_key, thread_exit) != 0)
        pm_refuse("no thread-specific key is free for the thread caches");
    pthread_atfork(fork_prepare, fork_parent, fork_child);
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
    pm_tcache = t;
    pthread_setspecific(thread_key, t); // may allocate: the cache is in place already
    errno = saved;
    return PM_WAY_CACHE;
}

// ---- main and exit -----------------------------------------------------------------------------------

static void say_start(void) {
    if (!pm_heap.persistent) {
        pm_say("volatile memory: nothing is kept");
        return;
    }
    pm_say("heap %s (%s); %u roots; %s: %lu objects, %lu bytes live, %lu bytes reclaimed in %.3f s",
           pm_heap.dir, pm_persist_guarantee(pm_durability), pm_heap_root_count(),
           !recovery.roots      ? "new"
           : recovery.was_clean ? "clean"
                                : "recovered",
           (unsigned long)recovery.live_objects, (unsigned long)recovery.live_bytes,
           (unsigned long)recovery.reclaimed_bytes, recovery.seconds);
}

void pm_runtime_before_main(void) {
    struct pm_error err;
    pm_runtime_start();
    if (pm_heap.persistent && pm_collector.capture(&err) != PM_OK) {
        if (pm_heap.created)
            pm_heap_remove();
        pm_refuse("%s", err.text);
    }
    if (pm_options.verbose.number)
        say_start();
}

// What close leaves of a heap that nothing can reach: nothing.
static void close_rootless(void) {
    if (!pm_log_reset() || !pm_heap_discard_data())
        return;
    pm_clean_vouch(0, NULL);
    pm_heap_clean();
}

void pm_runtime_exit(void) {
    if (pm_phase() != PM_READY)
        return;
    if (pm_options.stats.number)
        pm_stats_say();
    unsigned mine = pm_tcache != &pm_no_tcache;
    if (!pm_heap.persistent)
        return;
    if (default_heap && !pm_heap_has_roots()) {
        pm_heap_remove(); // the mapping stays for whoever still runs
        return;
    }
    if (pm_tcache_live() > mine)
        return; // other threads may still write: that is an unclean end, which recovery handles
    struct pm_tcache *t = pm_tcache;
    pm_tcache = &pm_no_tcache;
    if (t != &pm_no_tcache)
        pm_tcache_flush(t);
    atomic_store_explicit(&phase, PM_CLOSED, memory_order_release);
    closed_persistent = true;
    if (!pm_heap_has_roots()) {
        close_rootless();
        return;
    }
    pm_extent_purge(true);
    if (!pm_bitmaps_write())
        return;
    pm_clean_vouch(pm_heap.frontier, NULL);
    pm_heap_clean();
}

// ---- fork --------------------------------------------------------------------------------------------
//
// The child must not write the parent's heap, so it copies what is in use and moves the copy over the shared
// mapping before anything of its own runs. The parent waits in its fork handler meanwhile, or its stores
// would tear the copy. The pipe says when: the child's end closes when it is done, or dead.

static int fork_pipe[2] = {-1, -1};

static void lock_bins(void (*step)(struct pm_lock *)) {
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            step(&pm_arenas[a].bin[cls].lock);
}

// Bins share a rank, which pm_lock() in debug builds does not allow; fork alone takes them all.
static void raw_lock(struct pm_lock *lock) {
    uint32_t free_word = 0;
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1, memory_order_acquire,
                                                 memory_order_relaxed))
        pm_lock_slow(lock);
}

static void raw_unlock(struct pm_lock *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        pm_futex_wake(&lock->word, 1);
}

static void fork_prepare(void) {
    int saved = errno;
    raw_lock(&runtime_lock);
    raw_lock(&pm_tcache_lock);
    lock_bins(raw_lock);
    raw_lock(&pm_extent_lock);
    fork_pipe[0] = fork_pipe[1] = -1;
    if (pm_heap.persistent && pipe2(fork_pipe, O_CLOEXEC) != 0)
        fork_pipe[0] = fork_pipe[1] = -1;
    errno = saved;
}

static void fork_parent(void) {
    int saved = errno;
    if (fork_pipe[1] >= 0) {
        char byte;
        close(fork_pipe[1]);
        while (read(fork_pipe[0], &byte, 1) < 0 && errno == EINTR) {
        }
        close(fork_pipe[0]);
    }
    raw_unlock(&pm_extent_lock);
    lock_bins(raw_unlock);
    raw_unlock(&pm_tcache_lock);
    raw_unlock(&runtime_lock);
    errno = saved;
}

static void fork_child(void) {
    int saved = errno;
    pm_lock_reset(&runtime_lock);
    pm_lock_reset(&pm_tcache_lock);
    pm_lock_reset(&pm_extent_lock);
    lock_bins(pm_lock_reset);
    if (pm_heap.persistent) {
        if (fork_pipe[0] < 0 || !pm_collector.privatise() ||
            !pm_heap_privatise(pm_extent_each_active))
            pm_refuse("fork: no memory for the child's copy of the heap");
        close(fork_pipe[0]);
        close(fork_pipe[1]);
    }
    pm_tcache_orphans(pm_tcache);
    errno = saved;
}

// ---- pmalloc.h ---------------------------------------------------------------------------------------

#define EXPORT __attribute__((visibility("default")))

EXPORT int pmalloc_set_root(unsigned slot, void *p) {
    pm_runtime_start();
    if (slot >= PM_ROOT_SLOTS || (uintptr_t)p > PM_SLOT_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (!pm_heap.persistent || pm_phase() != PM_READY) {
        errno = ENOTSUP;
        return -1;
    }
    pm_commit_u64(&pm_heap.super->slots.slot[slot], pm_slot_word(slot, (uint64_t)(uintptr_t)p));
    return 0;
}

EXPORT void *pmalloc_get_root(unsigned slot) {
    pm_runtime_start();
    if (slot >= PM_ROOT_SLOTS || !pm_heap.persistent)
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

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "leaks_marker.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bare_child.h"
#include "base/bare_thread.h"
#include "base/lock.h"
#include "base/signal_stack.h"
#include "blocks/morph.h"
#include "commit/kernel_stores.h"
#include "live/collectable.h"
#include "live/live_mark.h"
#include "live/live_record.h"
#include "media/commit/stored_pages.h"
#include "media/heap.h"
#include "threads/thread_memory.h"

#define STACK_BYTES ((size_t)64 << 10)
#define NAP_NS 1000000
#ifndef NAPS_MOST        // the Makefile makes a library for tests
#define NAPS_MOST 30000u // longer than a tool tries
#endif
#define NR_CLOSE_RANGE 436 // younger than the oldest headers that this is built with

static struct {
    struct pm_thread_memory memory;
    _Atomic int id, program; // 0: there is none
    struct pm_marker_seen *seen;
    _Atomic bool leaves;
    int record; // the descriptor that it needs, or -1
} marker;

static void enter(enum pm_marker_stage stage) {
    atomic_store_explicit(&marker.seen->stage, stage, memory_order_release);
}

// ---- the process --------------------------------------------------------------------------------

// The lowest descriptor from `from` on that it needs: the record's, and of data files, which parts
// are holes. -1: there is no more.
static int next_needed(int from) {
    int next = marker.record >= from ? marker.record : -1;
    for (unsigned i = 0; i < pm_heap.shards && pm_heap_on_media(); i++) {
        int fd = pm_heap.shard[i].data.fd;
        if (fd >= from && fd > 0 && (next < 0 || fd < next))
            next = fd;
    }
    return next;
}

// Who waits for the end of a pipe, or for a lock, waits for all who have it.
static void close_others(void) {
    int from = 0;
    for (int next; (next = next_needed(from)) >= 0; from = next + 1)
        if (next > from)
            pm_bare_call(NR_CLOSE_RANGE, from, next - 1, 0, 0);
    pm_bare_call(NR_CLOSE_RANGE, from, ~0u, 0, 0);
}

static bool is_awaited(void) {
    return !atomic_load_explicit(&marker.leaves, memory_order_acquire) &&
           pm_bare_call(SYS_getppid, 0, 0, 0, 0) ==
               atomic_load_explicit(&marker.program, memory_order_relaxed);
}

static void stored(char *at, size_t len, void *unused) {
    (void)unused;
    pm_live_stored(at, len);
}

void pm_marker_mark_stored(void) {
    pm_live_record_each(stored, NULL);
    pm_live_mark();
}

// The tool may be killed, or get no hold of the program any more: then the next look fails, as the
// record has ended.
static void work_until_told(void) {
    const struct timespec nap = {0, NAP_NS};
    for (unsigned naps = 0; is_awaited() && naps < NAPS_MOST; naps++) {
        if (atomic_load_explicit(&marker.seen->stage, memory_order_acquire) == PM_MARKER_MARKS) {
            pm_marker_mark_stored();
            enter(PM_MARKER_MARKED);
            naps = 0;
        }
        pm_bare_call(SYS_nanosleep, (long)&nap, 0, 0, 0);
    }
}

static long run(void *unused) {
    // Of a process that ends by a fault: a limit of 1 also ends who takes it by a pipe.
    const struct rlimit no_core = {1, 1};
    (void)unused;
    pm_thread_memory_own();
    pm_bare_call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
    if (!is_awaited()) // it has ended already
        return 0;
    pm_bare_call(SYS_prlimit64, 0, RLIMIT_CORE, (long)&no_core, 0);
    close_others();
    bool good = pm_live_record_begin();
    if (good)
        pm_live_mark();
    good = good && pm_live_note();
    if (good)
        pm_live_record_settle();
    enter(good ? PM_MARKER_MARKED : PM_MARKER_FAILED);
    work_until_told();
    atomic_store_explicit(&pm_morphs_wait, false, memory_order_relaxed);
    pm_live_record_end();
    return 0;
}

// ---- who has it ---------------------------------------------------------------------------------

static bool is_ours(void) {
    return atomic_load(&marker.id) && atomic_load(&marker.program) == getpid();
}

static bool has_ended(int id, int options) {
    int status;
    long got = pm_bare_call(SYS_wait4, id, (long)&status, options | __WALL, 0);
    return got != 0 && got != -EINTR;
}

// What it could not do itself, if something has ended it.
static void be_gone(void) {
    atomic_store(&marker.id, 0);
    atomic_store(&pm_morphs_wait, false);
    pm_live_record_drop();
}

bool pm_marker_is_there(void) {
    int id = is_ours() ? atomic_load(&marker.id) : 0;
    if (id && !has_ended(id, WNOHANG))
        return true;
    if (id)
        be_gone();
    return false;
}

// The collector marks with the same memory. What the kernel stores on its own is in no record.
bool pm_marker_can(void) { return !pm_col && !pm_kernel_stores(); }

bool pm_marker_start(struct pm_marker_seen *seen) {
    const void *used[] = {&pm_locks_held, &pm_signal_stack_own};
    struct pm_thread_memory *m = &marker.memory;
    if (!pm_thread_memory(m, STACK_BYTES, used, 2))
        return false;
    marker.seen = seen;
    enter(PM_MARKER_MARKS);
    atomic_store(&seen->alive, 1);
    if (!pm_live_record_prepare(&seen->alive)) {
        be_gone();
        return false;
    }
    marker.record = pm_live_record_fd();
    atomic_store(&pm_morphs_wait, true);
    atomic_store(&marker.leaves, false);
    atomic_store(&marker.program, getpid());
    long id = pm_bare_child_beside(run, m->stack_top, m->pointer, &seen->alive);
    atomic_store(&marker.id, id > 0 ? (int)id : 0);
    if (id <= 0)
        be_gone();
    return id > 0;
}

void pm_marker_go_on(void) { enter(PM_MARKER_MARKS); }

void pm_marker_leave(void) { atomic_store_explicit(&marker.leaves, true, memory_order_release); }

void pm_marker_end(void) {
    int id = is_ours() ? atomic_exchange(&marker.id, 0) : 0;
    if (!id) // or another thread ends it
        return;
    if (!has_ended(id, WNOHANG)) {
        pm_bare_call(SYS_kill, id, SIGKILL, 0, 0);
        while (!has_ended(id, 0))
            ;
    }
    be_gone();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The end of a program. It is a point in exit(): behind the handlers that main and what it called have registered,
// before the destructors of what was constructed before main. Up to there every store of the program reaches the heap;
// there the process parts from it and goes on, at the same addresses, on private copies. So the destructors of global
// containers, which free what the containers hold, leave the heap alone.
//
//   alone            part, then write what a clean close leaves: nothing changes any more
//   other threads    they stand still for the parting; no clean mark: it is as if the process had been killed there
//   not to be had    (threads that do not stop, an allocator that a signal interrupted, no memory for the mappings):
//                    no parting, no clean mark; every store until the last reaches the heap, those of destructors too
//
// Parting takes several mappings, and no order of them is right while somebody stores: what is cut off first lacks
// stores that the rest still gets, of a block freed and used again, or of one whose pointer is in a root. So other
// threads wait meanwhile, and signals are blocked in this one.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc.h"
#include "bitmaps.h"
#include "clean.h"
#include "collector.h"
#include "extent.h"
#include "guard.h"
#include "options.h"
#include "others.h"
#include "private.h"
#include "runtime.h"
#include "stats.h"

static bool part(void) {
    munlockall(); // after mlockall(MCL_FUTURE) the whole range would be made real
    bool entered = pm_private_enter();
    if (entered && pm_collector.privatise())
        return true;
    // Some of it private and some shared: nobody may store any more.
    if (!pm_private_leave() || (entered && !pm_collector.rejoin()))
        pm_abort("no memory for the program to end apart from its heap; the heap is kept as the "
                 "program left it");
    return false;
}

// What the clean close of a heap leaves that nothing can reach: nothing.
static void close_rootless(void) {
    if (!pm_log_reset() || !pm_heap_discard_data())
        return;
    pm_clean_vouch(0, NULL);
    pm_heap_clean();
}

static void close_rooted(void) {
    struct pm_error ignored;
    uint32_t images_crc;
    if (!pm_bitmaps_write() || !pm_collector.images_crc(&images_crc, &ignored))
        return;
    pm_clean_vouch(pm_heap.frontier, &images_crc);
    pm_heap_clean();
}

static void end_alone(void) {
    bool rooted = pm_heap_has_roots();
    if (pm_tcache != &pm_no_tcache) {
        pm_free_left_over();
        pm_tcache_flush(pm_tcache);
    }
    if (rooted)
        pm_extent_purge(true);
    // Blocks in the cache of a thread that went without a word would count as in use.
    bool exact = !pm_tcache_lost && pm_tcache_live() <= (pm_tcache != &pm_no_tcache);
    if (!part())
        return;
    if (!rooted)
        close_rootless();
    else if (exact)
        close_rooted();
}

// The locks first, so that nobody stands still within the allocator: its log is then as a kill may leave it.
static void end_among_others(void) {
    if (!pm_heap_has_roots())
        return; // is emptied when it is opened
    pm_runtime_each_lock(pm_lock_raw);
    if (pm_others_stop()) {
        part();
        pm_others_resume();
    }
    pm_runtime_each_lock(pm_unlock_raw);
}

static _Atomic bool ended; // once: later the name of our heap may be another process's

// In a signal handler too, and in a child of vfork(), which shares our memory but has no say about our heap.
void pm_runtime_leave(void) {
    if (pm_phase() == PM_READY && pm_heap.persistent && pm_runtime_default_heap() &&
        !pm_heap_has_roots() && pm_heap.super->state.owner_pid == (uint64_t)getpid() &&
        !atomic_exchange(&ended, true))
        pm_heap_remove();
}

void pm_runtime_exit(void) {
    if (pm_phase() != PM_READY || pm_nested() || atomic_exchange(&ended, true))
        return;
    if (pm_options.stats.number)
        pm_stats_say();
    if (!pm_heap.persistent)
        return;
    if (pm_runtime_default_heap() && !pm_heap_has_roots()) {
        pm_heap_remove(); // the mapping stays for whoever still runs
        return;
    }
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    if (pm_others_none())
        end_alone();
    else
        end_among_others();
    sigprocmask(SIG_SETMASK, &before, NULL);
}

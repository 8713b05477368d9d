// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The life of the allocator in a process: start on the first request from anywhere, capture of roots before
// main, threads, fork, exit.
#ifndef PM_RUNTIME_H
#define PM_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

#include "collector.h"
#include "tcache.h"

enum pm_phase {
    PM_COLD,     // nothing has been asked for yet
    PM_STARTING, // one thread opens the heap; its own requests go to the bootstrap arena
    PM_READY,
    PM_CLOSED, // cleanly closed: the heap no longer changes
};

enum pm_phase pm_phase(void);

// Where a request without a thread cache goes.
enum pm_way {
    PM_WAY_CACHE,  // pm_tcache is this thread's now
    PM_WAY_DIRECT, // the thread is ending, or no memory for a cache: straight to the arena
    PM_WAY_BOOT,   // the heap is not open, or not any more
};
// Starts the runtime where needed and gives the thread its cache.
enum pm_way pm_thread_enter(void);

// Opens the heap where nothing has asked for memory yet. Refuses (exit status 125) on bad settings.
void pm_runtime_start(void);
// The preloaded library's own look at the process, before anything of libc is used: refuses where it must not be.
void pm_runtime_guard(void) __attribute__((weak));
// Captures and restores roots. Called once, after all constructors.
void pm_runtime_before_main(void);
// Clean close, or nothing where other threads still have caches.
void pm_runtime_exit(void);

const struct pm_recovery *pm_runtime_recovery(void);

// Around changes to the heap by a thread that may have no cache, so that a close in between is seen as unclean.
// False: the heap is closed, leave it alone, and there is nothing to end.
bool pm_pass_begin(void);
void pm_pass_end(void);

#endif

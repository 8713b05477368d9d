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
};

enum pm_phase pm_phase(void);

// Where a request without a thread cache goes.
enum pm_way {
    PM_WAY_CACHE,  // pm_tcache is this thread's now
    PM_WAY_DIRECT, // the thread is ending, or no memory for a cache: straight to the arena
    PM_WAY_BOOT,   // the heap is not open yet
};
// Starts the runtime where needed and gives the thread its cache.
enum pm_way pm_thread_enter(void);

// Opens the heap where nothing has asked for memory yet. Refuses (exit status 125) on bad settings.
void pm_runtime_start(void);
// The preloaded library's own look at the process, before anything of libc is used: refuses where it must not be.
void pm_runtime_guard(void) __attribute__((weak));
// Whether the settings ask for more than a default heap for this program.
bool pm_runtime_wanted(void);
// Captures and restores roots. Called once, after all constructors.
void pm_runtime_before_main(void);
// The end of the program: see runtime_exit.c. What is called later does nothing.
void pm_runtime_exit(void);

// The process ends by _exit(): a default heap that nothing can reach goes.
void pm_runtime_leave(void);

const struct pm_recovery *pm_runtime_recovery(void);
// Whether the byte at `p` belongs to a captured root.
bool pm_runtime_is_root(const void *p);

// For fork.c and runtime_exit.c. Every lock of the allocator, by rank.
void pm_runtime_each_lock(void (*step)(struct pm_lock *));
bool pm_runtime_default_heap(void);

#endif

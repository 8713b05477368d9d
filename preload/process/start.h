// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The life of the allocator in a process: it starts at the first request, captures roots before
// main, gives threads their caches, and ends with the program.
#ifndef PM_START_H
#define PM_START_H

#include <stdbool.h>
#include <stdint.h>

#include "blocks/tcache.h"
#include "recovery/recover.h"
#include "state/phase.h"

// The route of a request from a thread that had no cache.
enum pm_route {
    PM_ROUTE_CACHE,    // the thread has a cache now, in pm_tcache
    PM_ROUTE_DIRECT,   // to the arena: the thread is ending, or there is no memory for a cache
    PM_ROUTE_FALLBACK, // the heap is not open yet
};
// Starts the process where needed and gives the thread its cache.
enum pm_route pm_thread_enter(void);

// Opens the heap, unless an earlier call has done so. Ends the process (exit status 125) if the
// settings or the heap are bad.
void pm_process_start(void);
// The same when the library is loaded, but a program whose heap nothing could find again gets none
// before it has asked for more than a little (phase.h: WAITING). Most small programs end before.
void pm_process_begin(void);
// The same for a request of `bytes` bytes. A program that will open its heap by pmalloc_open() gets
// small requests from the fallback arena until then, up to half of its large part.
void pm_process_start_for(size_t bytes);
// As pm_process_start(), but such a program goes on waiting: for questions about a heap.
void pm_process_ask(void);
// pmalloc_open(): opens the heap at `dir`, if the process is cold or waiting. On failure the
// process is as before, and errno says what kind of failure it is, if pm_heap and *err do not. The
// process ends (exit status 125) only if a heap that has been checked cannot be recovered.
int pm_process_open(const char *dir, bool existing, struct pm_error *err);
// Whether the heap that is open was opened so.
bool pm_process_opened_by_call(void);
// It is closed, so it has no generation any more.
void pm_process_forget_heap(void);
// The preload check: the library looks at the process before anything of libc is used, and ends a
// process in which PMAlloc cannot work. The one weak reference: tools and tests do not have it.
void pm_preload_check(void) __attribute__((weak));
// Whether the settings ask for more than a default heap for this program.
bool pm_process_wanted(void);
// Captures and restores roots. Called once, after all constructors.
void pm_process_before_main(void);
// Whether that is done.
bool pm_process_main_runs(void);
// The end of the program: see end.c. Later calls do nothing. False: the process could not part from
// the heap and must end at once, because what runs on would store to the heap.
bool pm_process_end(void);

// The process ends by _exit(). Removes a default heap without roots.
void pm_process_leave(void);

// What the recovery at the start has found.
const struct pm_recovery *pm_process_recovery(void);
// Whether the byte at `p` belongs to a captured root.
bool pm_process_is_root(const void *p);

// Whether the heap is a default heap. For end.c.
bool pm_process_default_heap(void);
// How often the heap has been opened, this time included; 0 without a heap. Forked children keep
// the number, because their locks belong to this run.
uint64_t pm_process_generation(void);

#endif

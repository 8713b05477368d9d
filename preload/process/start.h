// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The life of the allocator in a process: it starts at the first request, gives threads their
// caches, and ends with the program.
#ifndef PM_START_H
#define PM_START_H

#include <stdbool.h>
#include <stdint.h>

#include "blocks/tcache.h"
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
// As pm_process_begin(), for pmalloc_open(): if that is the first call, the heap of the settings is
// not opened.
void pm_process_begin_called(void);
// The heap is open: from now on threads get caches.
void pm_process_give_caches(void);
// The preload check: the library looks at the process before anything of libc is used, and ends a
// process in which PMAlloc cannot work. The one weak reference: tools and tests do not have it.
void pm_preload_check(void) __attribute__((weak));
// The end of the program: see end.c. Later calls do nothing. False: the process could not part from
// the heap and must end at once, because what runs on would store to the heap.
bool pm_process_end(void);
// The same in mid-program, beside other threads: for pmalloc_close(). They are held until `then`
// has returned. False: one does not come to rest, and nothing has changed.
bool pm_process_end_beside(void then(void));
#define PM_NO_CLOSE "pmalloc_close: there is no memory for what the program does after it"

// The process ends by _exit(). Removes a default heap without roots.
void pm_process_leave(void);

#endif

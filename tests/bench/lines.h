// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which thread touches which cache line, and which lock. The allocator is compiled with
// -fsanitize=thread, which puts a call before every load and store, and is linked with lines.c in
// place of ThreadSanitizer's runtime. lines.c follows every line through caches that never evict,
// as a protocol of the MESI kind does: a line is held by its last writer and by all who have read
// it since. So the counts repeat exactly, and the machine's cores do not matter.
#ifndef PMALLOC_TESTS_BENCH_LINES_H
#define PMALLOC_TESTS_BENCH_LINES_H

#include <stdint.h>

#define LINES_THREADS 256u

enum lines_operation { LINES_MALLOC, LINES_FREE_LOCAL, LINES_FREE_REMOTE, LINES_OPERATIONS };

// What an operation did while it held no lock, a bin's lock, or the extent lock.
enum lines_place { LINES_UNLOCKED, LINES_IN_BIN, LINES_IN_EXTENT, LINES_PLACES };

struct lines_counts {
    uint64_t operations;
    uint64_t own, other, extent;      // locks taken: of the thread's own arena, of another, extent
    uint64_t rest;                    // locks taken that are none of these
    uint64_t handed, handed_far;      // locks last held by another thread; on another node
    uint64_t writes, writes_far;      // stores to a line last written by another thread; node
    uint64_t moved[LINES_PLACES];     // lines fetched from, or taken away from, another thread
    uint64_t moved_far[LINES_PLACES]; // the same, on another node
    uint64_t drains;                  // waits for the media
};
extern struct lines_counts lines_counts[LINES_OPERATIONS];

// Nodes of equal size: the first threads are on node 0. The calling thread's stack and
// thread-local variables are left out from now on; it plays the part of all threads.
void lines_begin(unsigned threads, unsigned nodes);
// Everything in between is done by `thread`.
void lines_enter(unsigned thread, enum lines_operation operation);
void lines_leave(void);
// Counts from 0. Who holds which line stays known.
void lines_zero(void);
// The operation waits for the media.
void lines_drain(void);

#endif

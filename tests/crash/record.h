// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The recorder. core and gc are compiled with -fsanitize=thread, which puts a call before every
// store. They are linked with the recorder in place of ThreadSanitizer's runtime. So it sees every
// store into the metadata files, in program order, and every flush and drain through
// core/media/persist.h. media.h says what becomes of them.
#ifndef PMALLOC_TESTS_CRASH_RECORD_H
#define PMALLOC_TESTS_CRASH_RECORD_H

#include <stddef.h>

#include "world.h"

// Starts to watch the heap directory world->root/heap in this process. What its files hold now
// counts as durable.
void record_begin(void);
// Compares the files with what was recorded. False: a store was not seen.
bool record_complete(void);
// Writes the state of the media into the heap's files, as after a power failure.
void record_restore_files(void);
// To be called after files appeared, changed or went by other means than stores.
void record_rescan(void);
// Which of the heap's files is open as `fd`; -1: none.
int record_file_of(int fd);
// How much of a file of so many bytes has a shadow.
uint64_t shadow_size(unsigned file, uint64_t bytes);
// A mapping for writing came or went.
void record_map(void *at, size_t len, int fd, uint64_t offset);
void record_unmap(void *at);
// Memory was stored to that may be a mapping.
void record_stored(const void *at, size_t len);

// The program's own data: durable at once, as if it flushed after every store.
void data_store(void *to, const void *from, size_t len);
static inline void data_store_u64(void *to, uint64_t value) {
    data_store(to, &value, sizeof value);
}

// The same where the program does not flush: a store like those of the library.
void data_store_weak(uint64_t *to, uint64_t value);

// So many times from now on the bookkeeping log cannot grow, because there is no space.
extern unsigned record_full_log;
// The allocator's clock, in milliseconds.
extern uint64_t record_clock_ms;

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_memory.h"

#include <errno.h>
#include <stdatomic.h>

#include "geometry.h"
#include "library.h"
#include "os.h"

#define SHARE 64u
#define RECORDS 256u // thread caches come by eight

static struct { uintptr_t from, to; } record[RECORDS];
static _Atomic unsigned count;

// Another thread that reads the record meanwhile may see it empty: both bounds 0.
void pm_own_note(const void *at, size_t bytes) {
    unsigned i = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    if (i >= RECORDS) {
        atomic_store_explicit(&count, RECORDS, memory_order_relaxed);
        return;
    }
    record[i].from = (uintptr_t)at;
    record[i].to = (uintptr_t)at + bytes;
}

void *pm_own_reserve(size_t bytes) {
    void *at = pm_os_reserve(bytes);
    if (at)
        pm_own_note(at, bytes);
    return at;
}

size_t pm_own_room(size_t each, size_t most) {
    int saved = errno;
    while (most > 1 && !pm_os_address_space(SHARE * each * most))
        most /= 2;
    errno = saved;
    return most;
}

// Up to the end of the last page: its rest is nobody's.
void pm_own_note_library(void) {
    size_t bytes = (size_t)(_end - __ehdr_start);
    if (!pm_library_is_program())
        pm_own_note(__ehdr_start, (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1));
}

uintptr_t pm_own_end(uintptr_t at, uintptr_t *next) {
    unsigned most = atomic_load_explicit(&count, memory_order_relaxed);
    uintptr_t end = 0;
    *next = UINTPTR_MAX;
    for (unsigned i = 0; i < RECORDS && i < most; i++) {
        if (at >= record[i].from && at < record[i].to)
            end = record[i].to > end ? record[i].to : end;
        else if (record[i].from > at && record[i].from < *next)
            *next = record[i].from;
    }
    return end;
}

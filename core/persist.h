// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The only door to durability. Everything that must survive a power failure is stored, then flushed here,
// then drained here before anything that depends on it is stored. No other file knows what a cache line
// flush is. The operations are a table, so that a test can put a recorder or a simulator in their place.
//
// Interface and meaning follow libpmem's flush and drain. Inside a stranger's process the built-in backend
// is used: linking libpmem there loads ten more libraries and costs every process about 1.5 ms at start.
#ifndef PM_PERSIST_H
#define PM_PERSIST_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// What has to happen for a store to survive power failure.
enum pm_durability {
    PM_DURABLE_NONE, // tmpfs: nothing survives, so nothing is flushed
    PM_DURABLE_CACHE, // caches are in the power-fail domain (eADR, CXL GPF): an sfence orders, no flush
    PM_DURABLE_LINE, // DAX with ADR: flush lines, fence
    PM_DURABLE_PAGE, // a plain file: msync the pages
};

struct pm_persist_ops {
    void (*flush)(const void *addr,
                  size_t len); // start writing back the lines of [addr, addr + len)
    void (*drain)(void);       // everything flushed before is durable on return
};

extern struct pm_persist_ops pm_persist;
extern enum pm_durability pm_durability;

// Chooses the backend for a mapping of `fd`; `forced` is -1 or an enum pm_durability.
void pm_persist_init(int fd, int forced);
// Finds what a mapping of `fd` needs, without choosing it.
enum pm_durability pm_persist_probe(int fd);
// The row of the guarantee table that holds, for people.
const char *pm_persist_guarantee(enum pm_durability durability);

extern _Atomic uint64_t pm_persist_flushes, pm_persist_drains; // calls so far, for statistics

static inline void pm_flush(const void *addr, size_t len) {
    atomic_fetch_add_explicit(&pm_persist_flushes, 1, memory_order_relaxed);
    pm_persist.flush(addr, len);
}
static inline void pm_drain(void) {
    atomic_fetch_add_explicit(&pm_persist_drains, 1, memory_order_relaxed);
    pm_persist.drain();
}
static inline void pm_make_durable(const void *addr, size_t len) {
    pm_flush(addr, len);
    pm_drain();
}

// A commit point: one aligned 8-byte store, durable on return.
static inline void pm_commit_u64(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    pm_make_durable(word, sizeof *word);
}

#endif

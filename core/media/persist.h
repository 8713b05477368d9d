// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The only door to durability. Data that must survive a power failure are stored, then flushed
// here, then drained here. Only then may anything be stored that depends on it. No other file knows
// what a cache line flush is. The operations are a table, so that a test can put a recorder or a
// simulator in their place.
//
// Flush and drain mean what they mean in libpmem. We do not link libpmem: it loads ten more
// libraries and adds about 1.5 ms to the start of every process. Nor libnuma, for the same reason.
// The one tool that flushes media does it by libpmem (tools/common/pmem.h).
#ifndef PM_PERSIST_H
#define PM_PERSIST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

// What has to happen for a store to survive power failure.
enum pm_durability {
    PM_DURABLE_NONE,  // tmpfs: nothing survives, so nothing is flushed
    PM_DURABLE_CACHE, // eADR, CXL GPF: the caches survive, so there is no flush; an sfence orders
    PM_DURABLE_LINE,  // DAX with ADR: flush lines, fence
    PM_DURABLE_PAGE,  // a plain file: msync the pages
};

struct pm_persist_ops {
    // Starts writing back the lines of [addr, addr + len).
    void (*flush)(const void *addr, size_t len);
    // On return everything that this thread has flushed is durable.
    void (*drain)(void);
};

extern struct pm_persist_ops pm_persist;
extern enum pm_durability pm_durability;

// Chooses how stores are flushed, for the heap whose data file is `fd`. `heap` is its directory,
// for messages; the string must stay. `forced` is an enum pm_durability, or -1 to go by the medium.
// On DAX the flush of lines is only enough while the kernel grants MAP_SYNC for every file of the
// heap. Without MAP_SYNC the file system's own metadata (which block belongs to which file) may be
// lost, and flushed data then come back as zeroes.
// PM_OPERATIONAL: the medium cannot be known.
int pm_persist_init(int fd, int forced, const char *heap, struct pm_error *err);
// The same for a device DAX, whose file in /dev says nothing of it.
void pm_persist_init_device(int forced, const char *heap);
// The kernel has refused MAP_SYNC for `file`; the string must stay. True: map the file without it.
// Unless the durability is forced, all files are written back by page from now on. False: this
// heap has already promised durable stores, so the refusal is an error.
bool pm_persist_refused(const char *file);
// True: the kernel has been asked about every file of the heap, so later refusals are errors.
// False: other files are about to take their place, so refusals are allowed again.
void pm_persist_promise(bool promised);
// What a flush that fails does, once one line has said it. 0: the process aborts, because it is in
// the middle of a change. Else it ends with this status: before main with PM_EXIT_START, in a tool
// with PM_OPERATIONAL.
extern int pm_persist_exit;
// A sync of a file of the heap has failed, a flush or another: what is done then (doubt.h).
extern void (*pm_persist_failed)(void);
void pm_sync_failed(void);
// Whether each flush waits until a disk has written: then it pays to make several stores durable
// with one.
static inline bool pm_persist_waits(void) { return pm_durability == PM_DURABLE_PAGE; }
// On: stores reach media with commits (commit.h), so nothing is flushed and the durability is
// PM_DURABLE_NONE. Off: as it was found.
void pm_persist_journaled(bool on);
// A call that makes something durable has failed with errno. True: a sandbox forbids it (seccomp).
// Then the process goes on without, because a kill needs no order of stores, and one line says what
// a power failure may do. False: it is another failure.
bool pm_persist_forbidden(const char *call);
// Whether files must be synced that are not in the journal.
bool pm_persist_syncs(void);
// Whether the open heap lies on DAX, however its stores are flushed.
bool pm_persist_dax(void);
// Finds what a mapping of `fd` needs, without choosing it. False, with errno: that cannot be known.
bool pm_persist_probe(int fd, enum pm_durability *found);
enum pm_durability pm_persist_probe_device(void); // the same of any device DAX
// The row of the guarantee table that applies to the open heap, as text. Where it is not the row of
// the medium, the text says why.
const char *pm_persist_row(void);
// A row of the guarantee table.
const char *pm_persist_guarantee(enum pm_durability durability);
// How stores are flushed: an instruction, "msync" or "none".
const char *pm_persist_flush_name(enum pm_durability durability);

// Calls so far, for statistics. Threads count in their arenas, so that the threads of two arenas
// store to no line of both; who has no arena counts in pm_persist_others.
struct pm_persist_count {
    _Atomic uint64_t flushes, drains;
} __attribute__((aligned(64)));
extern struct pm_persist_count pm_persist_others;
extern __thread struct pm_persist_count *pm_persist_mine __attribute__((tls_model("initial-exec")));

static inline void pm_flush(const void *addr, size_t len) {
    atomic_fetch_add_explicit(&pm_persist_mine->flushes, 1, memory_order_relaxed);
    pm_persist.flush(addr, len);
}
static inline void pm_drain(void) {
    atomic_fetch_add_explicit(&pm_persist_mine->drains, 1, memory_order_relaxed);
    pm_persist.drain();
}
static inline void pm_make_durable(const void *addr, size_t len) {
    pm_flush(addr, len);
    pm_drain();
}

// Stores that become durable with one flush: the range from the first of them to the last.
struct pm_gather {
    const char *from, *to;
};
static inline void pm_gather_add(struct pm_gather *g, const void *addr, size_t len) {
    const char *from = addr, *to = from + len;
    g->from = !g->from || from < g->from ? from : g->from;
    g->to = to > g->to ? to : g->to;
}
static inline void pm_gather_durable(const struct pm_gather *g) {
    if (g->from)
        pm_make_durable(g->from, (size_t)(g->to - g->from));
}

// Zeroes memory that a program gets, [addr, addr + len) in the heap; nothing is flushed. On DAX a
// range that is larger than a core's own cache is stored past the caches: else each of its lines
// would be read from the medium, and would push out what the program works with. Such stores are
// fenced here, so that they have their place among the thread's others.
void pm_zero(void *addr, size_t len);

// A commit point: one aligned 8-byte store, durable on return.
static inline void pm_commit_u64(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    pm_make_durable(word, sizeof *word);
}

#endif

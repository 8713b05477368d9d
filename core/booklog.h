// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The bookkeeping log (PMAlloc, section 5.3): which extents are allocated, as an append-only set of 8-byte
// entries. An allocation appends an entry, a free appends a tombstone that names the entry's position; both
// are durable on return. Replay is a set operation, so the order of entries on media does not matter and
// consecutive ones can go to different cache lines (interleaved appending).
//
//   chunk 0          chunk 1          chunk 2
//   [e e e e ... ]   [e t e . ... ]   [free]      a tombstone t in chunk 1 may end an entry in chunk 0
//
// A chunk may be freed when it has no live entry and no tombstone whose entry still stands in a chunk of
// the log: dropping such a tombstone would bring its entry back to life. Such tombstones pin their chunk.
//
// All functions are called with the extent lock held.
#ifndef PM_BOOKLOG_H
#define PM_BOOKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"
#include "message.h"

// A position: chunk * 128 + entry.
typedef uint32_t pm_log_pos;
#define PM_LOG_NOWHERE UINT32_MAX

// An entry without its check bits, which booklog.c alone adds and takes off.
static inline uint64_t pm_entry_make(enum pm_entry_type type, uint64_t page, uint64_t pages) {
    return pages << 38 | (page & ((1ull << 28) - 1)) << 2 | (uint64_t)type;
}
static inline enum pm_entry_type pm_entry_type(uint64_t e) { return (enum pm_entry_type)(e & 3); }
static inline uint64_t pm_entry_page(uint64_t e) { return e >> 2 & ((1ull << 28) - 1); }
static inline uint64_t pm_entry_pages(uint64_t e) { return e >> 38; }

// Reads the log; `each` is called for every live entry and may refuse it by filling `err` and returning a
// status. Nothing is written.
int pm_log_load(int (*each)(uint64_t entry, pm_log_pos pos, struct pm_error *err),
                struct pm_error *err);
// Calls `each` for every live entry, as pm_log_load does; `each` must not write the log.
int pm_log_each(int (*each)(uint64_t entry, pm_log_pos pos, struct pm_error *err),
                struct pm_error *err);
// Makes a loaded log appendable: drops what an interrupted slow GC left.
void pm_log_activate(void);
// The header of a log that is empty.
void pm_log_header_init(struct pm_log_header *header);
// Makes the log empty, durably and at once, whatever it held. For a heap that nothing can reach.
bool pm_log_reset(void);

// Whoever holds positions learns here that an entry moved (slow GC).
extern void (*pm_log_moved)(uint64_t entry, pm_log_pos to);

// Appends an entry. PM_LOG_NOWHERE when the file system has no room for another chunk.
pm_log_pos pm_log_append(uint64_t entry);
// Ends the entry at *pos; never fails. By reference, because making room may move the entry first.
void pm_log_end(const pm_log_pos *pos);
// Takes the entry out where it stands, without a tombstone: marks it erased.
void pm_log_erase(pm_log_pos pos);

// What the log holds, for comparison: number of live entries and a sum over them that no order changes.
struct pm_log_digest {
    uint64_t entries, sum;
};
struct pm_log_digest pm_log_digest(void);

struct pm_log_stats {
    uint64_t chunks, active, live, fast_gcs, slow_gcs;
};
struct pm_log_stats pm_log_stats(void);

#endif

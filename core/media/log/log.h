// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The bookkeeping log (PMAlloc, section 5.3) says which extents are active. It is a set of 8-byte
// entries to which we only append. An allocation appends an entry. A free appends a tombstone that
// names the entry's position. Both are durable on return. Reading the log gives the same set
// whatever the order of entries on media. So consecutive entries can go to different cache lines
// (interleaved appending).
//
//   chunk 0          chunk 1          chunk 2
//   [e e e e ... ]   [e t e . ... ]   [free]      tombstone t may end an entry of chunk 0
//
// A chunk can leave the log when no entry in it stands and no tombstone in it is needed any more. A
// tombstone is needed while the chunk of its entry is in the log: without the tombstone that entry
// would stand again. Until then the tombstone pins its own chunk.
//
// Each shard has a log of its own. An entry counts pages from the shard's first byte.
//
// All functions are called with the shard's extent lock held.
#ifndef PM_LOG_H
#define PM_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "log_entry.h"
#include "media/format.h"
#include "media/shard.h"

struct pm_log_stats {
    uint64_t chunks, active, live, chunk_drops, compactions;
};
// Called for an entry that stands in the shard's log. It may refuse the entry: it fills `err` and
// returns a status.
typedef int pm_log_each_fn(struct pm_shard *s, uint64_t entry, pm_log_pos pos,
                           struct pm_error *err);

// Reads the log and calls `each`, which may be NULL, for every entry that stands. Nothing is
// written.
int pm_log_load(struct pm_shard *s, pm_log_each_fn *each, struct pm_error *err);
// The same for a copy of some shard's log in the caller's own memory. *stats says what is in it.
// The shard that `each` gets stands for the copy and has no files.
int pm_log_read(const void *bytes, size_t size, pm_log_each_fn *each, struct pm_log_stats *stats,
                struct pm_error *err);
// Calls `each` for every entry that stands, as pm_log_load() does. `each` must not write the log.
int pm_log_each(struct pm_shard *s, pm_log_each_fn *each, struct pm_error *err);
// Prepares a loaded log for appending: makes it durable and frees the chunks that an interrupted
// compaction has left.
void pm_log_activate(struct pm_shard *s);
// Fills the header of an empty log.
void pm_log_header_init(struct pm_log_header *header);
// Makes the log empty with one commit. For a heap that nothing can reach. False: the log is
// unchanged.
bool pm_log_reset(struct pm_shard *s);

// Appends an entry. PM_LOG_NOWHERE when the file system has no room for another chunk.
pm_log_pos pm_log_append(struct pm_shard *s, uint64_t entry, pm_log_moved_fn *moved);
// Appends several entries with one flush, where flushes wait (pm_persist_waits). pos[i] becomes the
// position of entry[i]. Returns for how many the log has room, from the first on.
unsigned pm_log_append_group(struct pm_shard *s, const uint64_t *entry, pm_log_pos *pos,
                             unsigned count, pm_log_moved_fn *moved);
// Ends the entry at *pos; never fails. `pos` is a pointer to the caller's own note of the position,
// because making room may move the entry first.
void pm_log_end(struct pm_shard *s, const pm_log_pos *pos, pm_log_moved_fn *moved);
// Ends the entry without a tombstone: overwrites it as erased.
void pm_log_erase(struct pm_shard *s, pm_log_pos pos);
// Takes out many entries of extents that nothing reaches. pm_log_forget() erases one, but does not
// make that durable. One of the two functions after it makes all such erasures durable at once.
// In between nothing may be appended, and no page of a forgotten extent may be used or released.
void pm_log_forget(struct pm_shard *s, pm_log_pos pos);
// Of entries that all stand at positions from `low` to `high`.
void pm_log_forgotten_between(struct pm_shard *s, pm_log_pos low, pm_log_pos high);
// Recovery's: of any entries. The log may be compacted.
void pm_log_forgotten(struct pm_shard *s, pm_log_moved_fn *moved);

// What the log has, for comparison: the number of entries that stand, and a sum over them that
// does not depend on their order.
struct pm_log_digest {
    uint64_t entries, sum;
};
struct pm_log_digest pm_log_digest(const struct pm_shard *s);

struct pm_log_stats pm_log_stats(const struct pm_shard *s);
struct pm_log_stats pm_log_stats_sum(void); // over the logs of all shards

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A shard: one data file of the heap, heap.N, with what belongs to it alone: slab headers
// (slabs.N), index tables (morph.N), bookkeeping log (booklog.N), length, and the lock over these.
//
//   pm_base                + 1 TiB                + 2 TiB
//   | shard 0: heap.0      | shard 1: heap.1      | ...
//   |<- frontier ->|       |<- frontier ->|
//
// Shards lie in a row in the heap's range, 1 TiB of addresses each, so a shift of an offset gives
// the shard. On media everything that belongs to a shard counts from the shard's first byte: pages
// in the log, slabs in headers and index tables. So each shard looks on media as the one shard of a
// small heap does. In memory pages and slabs count from pm_base.
//
// pages/shard_extents.h has the allocator's knowledge of a shard's extents.
#ifndef PM_SHARD_H
#define PM_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lazy_table.h"
#include "base/lock.h"
#include "heap_files.h"

#define PM_SHARD_PAGES (PM_SHARD_RANGE >> PM_PAGE_SHIFT)
#define PM_SHARD_SLABS (PM_SHARD_RANGE >> PM_SLAB_SHIFT)

// The chunks of a shard's log; log_chunks.h says what a pm_vchunk is.
struct pm_chunks {
    struct pm_vchunk *v;
    struct pm_lazy_table table; // of `v`
    uint32_t count;             // that were ever used; the file may have more
    uint32_t active;            // in the log
    uint32_t current;           // where entries are appended
    uint32_t free_head;         // then by `next_free`
    uint64_t live;              // entries that stand
    uint64_t places;            // erased entries that others may overwrite (log_places.h)
    uint32_t place_at;          // where the search for the next one begins
    uint64_t chunk_drops, compactions;
};

// Its size is a power of two, so that a shift leads from an offset to it.
struct pm_shard {
    _Alignas(1024) struct pm_lock lock; // the extent lock: files, frontier, log, extents
    uint64_t offset;                    // of its first byte, from pm_base
    uint64_t frontier; // bytes from there on below which extents lie; the data file's length
    uint64_t limit;    // the frontier's bound
    uint16_t node;     // whose memory it is (shard_nodes.h)
    unsigned volume;   // the directory that has its files
    struct pm_chunks chunks;
    struct pm_shard_extents *extents; // what the allocator knows of them (pages/shard_extents.h)
#define MEMBER(n, member, ...) struct pm_file member;
    PM_SHARD_FILE_TABLE(MEMBER, 0)
#undef MEMBER
    // The data file could not be given back the length that the shard has: no close is clean then.
    bool length_unknown;
    struct pm_lazy_table anonymous; // the addresses of a shard in volatile memory
    uint64_t dumped;                // bytes of the data file's mapping that core dumps may have
    unsigned rest;                  // requests for space that do without a huge page (on_files.c)
};
_Static_assert(sizeof(struct pm_shard) == 1024, "a power of two");

static inline unsigned pm_shard_number(const struct pm_shard *s) {
    return (unsigned)(s->offset >> PM_SHARD_SHIFT);
}

// The first page after the shard's last extent, from pm_base.
static inline uint64_t pm_shard_end(const struct pm_shard *s) {
    return (s->offset + s->frontier) >> PM_PAGE_SHIFT;
}

#endif

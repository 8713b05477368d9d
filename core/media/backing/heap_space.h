// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Space and length of the heap's files: how they are taken from the file system and given back.
#ifndef PM_HEAP_SPACE_H
#define PM_HEAP_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/heap.h"

// The shard is anonymous memory now. Its first `writable` bytes can be written.
void pm_shard_is_anonymous(struct pm_shard *s, uint64_t writable);

// The functions from here to pm_heap_release_space() are called with the extent lock held, that
// of the shard at the offset where there is no other. Offsets are from pm_base, page aligned.

// Makes slabs.N long enough for the header of every slab below the frontier. After a power failure
// it may be shorter. A header stored beyond its end would be lost, or would end the process.
bool pm_shard_complete(struct pm_shard *s);
// Moves the frontier to `bytes` after the shard's first byte. False: it would pass a limit, or the
// file system refuses, or the file would become shorter while it is pinned.
bool pm_shard_set_frontier(struct pm_shard *s, uint64_t bytes);
// Under PMALLOC_COMMIT: makes the data file no longer than this.
bool pm_shard_cut(struct pm_shard *s, uint64_t bytes);
// The piece of the data file that is best taken and given back whole. On DAX it is 2 MiB: the
// kernel maps 2 MiB at once if the file system has them in one aligned piece. Elsewhere it is a
// page. ext4 aligns what is asked for in such units. xfs does so where it was made with a stripe of
// 2 MiB. An extent size hint of the file changes nothing, and takes the last pieces of a full disk.
uint64_t pm_heap_unit(void);
// Allocates space for [offset, offset + len), so that touching it cannot fail for lack of space.
bool pm_heap_allocate_space(uint64_t offset, uint64_t len);
// Promises space to a huge block instead: touching it cannot fail either, but takes its space then.
// *empty becomes whether the range is new memory now, which reads as zeroes.
bool pm_heap_promise_space(uint64_t offset, uint64_t len, bool *empty);
// The bytes that were promised to the shard's extents and have no space yet.
uint64_t pm_shard_outstanding(struct pm_shard *s, uint64_t promised);
// Whether the file system has room for `len` more bytes. The shard's active extents were promised
// `promised` bytes, of which some may have no space yet. *known becomes false if the system does
// not tell.
bool pm_shard_has_room(struct pm_shard *s, uint64_t len, uint64_t promised, bool *known);
// Releases the space. The range then reads as zeroes. False when the file system cannot. On a fixed
// medium there is nothing to release, and the bytes stay.
bool pm_heap_release_space(uint64_t offset, uint64_t len);
// Whether released space reads as zeroes, and space from beyond the frontier.
bool pm_heap_released_is_zero(void);
bool pm_heap_fresh_is_zero(void);

// A piece of the data file that is known to have no holes; all zero at first. The file system finds
// the end of a piece page by page. Without this note it would do so again for every part of a long
// piece, in quadratic time.
struct pm_written {
    uint64_t from, to;
};
// Moves *offset to the next byte below `end` that was ever written, and returns how many written
// bytes follow; 0: there are none. *offset and `end` are in one shard. If the file system cannot
// tell, everything is taken for written. No lock is needed. `known` belongs to the caller and is
// valid until space of the file is released.
uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end);
// Whether it may find a page that was never written.
bool pm_heap_shows_holes(void);
// The same for what the file has, whatever the process has stored since the last commit.
uint64_t pm_heap_next_in_file(struct pm_written *known, uint64_t *offset, uint64_t end);

// Makes `file` at least `size` bytes long and allocates space for them.
bool pm_file_grow(struct pm_file *file, size_t size);
// Allocates space for a range of `file`, so that a store to its mapping cannot fail.
bool pm_file_back_with_space(struct pm_file *file, uint64_t offset, uint64_t len);
// Pins the shard's data file: returns a new read-only descriptor that holds a lock on it, for
// private mappings; -1 on failure. While the descriptor or such a mapping exists, in any process,
// nobody makes the file shorter.
int pm_shard_pin(struct pm_shard *s);

#endif

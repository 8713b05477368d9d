// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the heap lies in, and what that means for space and length of its data. backing.c has one
// row an answer; the rows' functions stand in rows.h. A new kind of medium is one more row.
//
//   row           the range from pm_base               a store reaches   space
//   files         heap.N, shared                       the file          taken and given back
//   parts         parts of fixed media, shared         the medium        is there from the start
//   journaled     either, private (PMALLOC_COMMIT)     it at a commit    of the row below, and the
//                                                                        journal's; given back late
//   memory        anonymous                            no medium         the kernel's
//   detached      either or a copy, private            no medium         fresh memory in its place
#ifndef PM_BACKING_H
#define PM_BACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/heap.h"
#include "written.h"

enum pm_backing {
    PM_BACKING_FILES,
    PM_BACKING_PARTS,
    PM_BACKING_JOURNALED,
    PM_BACKING_MEMORY,
    PM_BACKING_DETACHED, // pm_heap_state(): PARTED, PRIVATE, BORROWED; or there is no heap
};
enum pm_backing pm_backing(void);

// The functions from here to pm_heap_vacate() are called with the extent lock held, that of the
// shard at the offset where there is no other. Offsets are from pm_base, page aligned.

// Moves the frontier to `bytes` after the shard's first byte. False: it would pass a limit, or the
// file system refuses, or the file would become shorter while it is pinned.
bool pm_shard_set_frontier(struct pm_shard *s, uint64_t bytes);
// Whether the heap's limit allows so many bytes more.
bool pm_heap_may_grow(uint64_t more);
// Under PMALLOC_COMMIT: makes the data file no longer than this.
bool pm_shard_cut(struct pm_shard *s, uint64_t bytes);
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
// The same for a range that stays allocated: it keeps a promise of space.
bool pm_heap_vacate(uint64_t offset, uint64_t len);

// The piece of the data file that is best taken and given back whole. On DAX it is 2 MiB: the
// kernel maps 2 MiB at once if the file system has them in one aligned piece. Elsewhere it is a
// page. ext4 aligns what is asked for in such units. xfs does so where it was made with a stripe of
// 2 MiB. An extent size hint of the file changes nothing, and takes the last pieces of a full disk.
uint64_t pm_heap_unit(void);
// Whether space that was released reads as zeroes, space that was vacated, and space from beyond
// the frontier.
bool pm_heap_released_is_zero(void);
bool pm_heap_vacated_is_zero(void);
bool pm_heap_fresh_is_zero(void);
// Whether the data file is as long as the frontier says.
bool pm_heap_length_is_frontier(void);

// As pm_heap_next_in_file() (written.h), for what the process sees.
uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end);
// Whether it may find a page that was never written.
bool pm_heap_shows_holes(void);

// The shard is anonymous memory now. Its first `writable` bytes can be written.
void pm_shard_is_anonymous(struct pm_shard *s, uint64_t writable);

#endif

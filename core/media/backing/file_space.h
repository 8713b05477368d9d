// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How space and length are taken from a file system and given back to it, for one file. A file that
// is a part of a fixed medium has its space, and its length is a word on media.
#ifndef PM_FILE_SPACE_H
#define PM_FILE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/heap.h"

// Makes `file` at least `size` bytes long and allocates space for them.
bool pm_file_grow(struct pm_file *file, size_t size);
// The same, for who has asked for room (base/file_limit.h). Beyond the limit the kernel sends
// SIGXFSZ.
bool pm_file_grow_in_room(struct pm_file *file, size_t size);
// Allocates space for a range of `file`, so that a store to its mapping cannot fail.
bool pm_file_back_with_space(struct pm_file *file, uint64_t offset, uint64_t len);

// Makes slabs.N long enough for the header of every slab below the frontier, with the extent lock.
// After a power failure it may be shorter. A header stored beyond its end would be lost, or would
// end the process.
bool pm_shard_complete(struct pm_shard *s);

// ---- for the rows of backing.c ------------------------------------------------------------------

// fallocate(), not interrupted. False, with EOPNOTSUPP if the file system or a sandbox does not
// allow the call at all.
bool pm_space_allocate(int fd, int mode, uint64_t offset, uint64_t len);
// Allocates space by it, or else through a mapping.
bool pm_space_back(const struct pm_file *file, uint64_t offset, uint64_t len);
// Sets the length, which was `from`.
bool pm_space_set_length(int fd, uint64_t from, uint64_t size);
// Gives back what is mapped at `at`.
bool pm_space_punch(int fd, uint64_t offset, uint64_t len, void *at);
// Makes slabs.N long enough for a data file of this length, for who has asked for room for that:
// slabs.N is much shorter.
bool pm_slabs_grow_in_room(struct pm_shard *s, uint64_t bytes);

#endif

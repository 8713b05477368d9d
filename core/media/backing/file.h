// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One file of the heap: how it is opened and mapped, and how it is found again after the program
// has closed its descriptor.
#ifndef PM_FILE_H
#define PM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/heap.h"

// Maps a file of the heap, shared. Every store to a file goes through a mapping made here. On DAX
// the mapping has MAP_SYNC: then the file's blocks and length are durable together with the lines
// written to them. If the kernel refuses MAP_SYNC before pm_heap_map() is done, the heap is used
// like plain files (pm_persist_refused). A later refusal returns MAP_FAILED with errno, like any
// other failure. `flags` may add MAP_FIXED or MAP_NORESERVE. It may not add MAP_FIXED_NOREPLACE,
// which the kernel refuses beside MAP_SYNC.
void *pm_file_map(const struct pm_file *file, void *at, size_t len, int prot, int flags,
                  uint64_t offset);
// Maps a piece of a file shared under PMALLOC_COMMIT, too, where pm_file_map() maps private.
void *pm_file_map_shared(const struct pm_file *file, size_t len, uint64_t offset);
// The same, to read only. NULL: it cannot be mapped.
const void *pm_file_view(const struct pm_file *file, size_t len, uint64_t offset);
// Unmaps what these functions have mapped at an address of the kernel's choice.
void pm_file_unmap(const struct pm_file *file, const void *at, size_t len);
// Asks the kernel the same for a file that is mapped later, or piece by piece. False: the file
// cannot be mapped.
bool pm_file_try(const struct pm_file *file);

// Makes sure that file->fd is still this file. If the program has closed our descriptor, opens the
// file again, or makes it again if it has no name. False: that cannot be done, or another file
// stands at its path.
bool pm_file_ready(struct pm_file *file);

// Whether file->fd is still this file. The program may have closed our descriptor, and may use its
// number for a file of its own.
bool pm_file_is_ours(const struct pm_file *file);
// Opens the file called file->name in pm_heap's directory. Without names it is open already.
int pm_file_open(struct pm_file *file, int flags, struct pm_error *err);
// Makes a file without a name once more, from its mapping, and maps it in its place. False: another
// thread may be storing to it, or there is no room; nothing has changed.
bool pm_file_again(struct pm_file *file);
// `fd` is the file from now on. Closes it and returns false if it cannot be looked at.
bool pm_file_hold(struct pm_file *file, int fd);
// Closes it, if it is still this file.
void pm_file_close(struct pm_file *file);
// fsync: makes durable what was stored to it, and its length. False, with errno.
bool pm_file_sync(struct pm_file *file);
// The next byte from `at` on that is in no hole, where the file is open; UINT64_MAX: there is none.
// Where the file system cannot tell, `at`.
uint64_t pm_file_next_data(const struct pm_file *file, uint64_t at);

#endif

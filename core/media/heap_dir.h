// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap directory: its owner, its lock, making and removing a heap in it.
#ifndef PM_HEAP_DIR_H
#define PM_HEAP_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "heap.h"

// Removes the heap's files and directory. The lock is held.
void pm_heap_remove(void);

// The same for a heap that is not open. `dir_fd` is the directory at `dir`, locked by the caller.
void pm_heap_remove_at(int dir_fd, const char *dir);

// Opens and locks the directory into pm_heap.dir_fd. With PM_OPEN_CREATE it makes the directory and
// the heap if they are missing. On failure nothing is held.
int pm_dir_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err);
void pm_dir_close(void);
// Makes sure that pm_heap.dir_fd is still the heap's directory, as pm_file_ready() does for files.
// Call it before using a name in the directory: the program may have closed the descriptor and may
// use its number for a file of its own. False: it has gone, or the heap lies on a fixed medium,
// which has no names.
bool pm_dir_ready(void);
// From now on `fd` is the heap's directory.
void pm_dir_adopt(int fd);
// Whether the directory is what an interrupted making or removal leaves. It has no superblock, and
// either no data or a superblock.new. Nothing that anybody could miss is in it.
bool pm_dir_is_remnant(int fd);
// Unlinks the files of a heap. If one of them cannot be unlinked, a remnant is left.
bool pm_dir_empty(int fd);
#endif

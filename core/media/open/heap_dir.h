// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap directory: its owner, its lock, making and removing a heap in it.
#ifndef PM_HEAP_DIR_H
#define PM_HEAP_DIR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/backing/dir_held.h"
#include "media/heap.h"

// Removes the heap's files and directory. The lock is held.
void pm_heap_remove(void);

// The same for a heap that is not open. `dir_fd` is the directory at `dir`, locked by the caller.
void pm_heap_remove_at(int dir_fd, const char *dir);

// Opens and locks the directory into pm_heap.dir_fd. With PM_OPEN_CREATE it makes the directory and
// the heap if they are missing. On failure nothing is kept open.
int pm_dir_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err);
// For an open heap without names: makes the directory `dir` the heap's, with all its files. It is
// complete at once, and durable, or not there, if the process or the machine stops meanwhile. On
// failure the heap is as before; pm_is_busy() says whether another heap is there. Other threads may
// allocate meanwhile.
int pm_dir_name(const char *dir, struct pm_error *err);
void pm_dir_close(void);
// Whether the directory is what an interrupted making or removal leaves. It has no superblock, and
// either no data or a superblock.new. Nothing that anybody could miss is in it.
bool pm_dir_is_remnant(int fd);
// Whether it has a file that is none of a heap's. Writes the name of the first one.
bool pm_dir_stranger(int fd, char name[NAME_MAX + 1]);
// Unlinks the files of a heap. If one of them cannot be unlinked, a remnant is left.
bool pm_dir_empty(int fd);

// Puts an empty data file in place of each present one. The space of the present one is released
// when this process ends. Until then late readers (stdio's exit, destructors of other libraries)
// find everything as it was. The log must be empty.
bool pm_heap_discard_data(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The descriptor of the heap's directory, found again by its inode.
#ifndef PM_DIR_HELD_H
#define PM_DIR_HELD_H

#include <stdbool.h>
#include <sys/stat.h>

// Makes sure that pm_heap.dir_fd is still the heap's directory, as pm_file_ready() does for files.
// Call it before using a name in the directory: the program may have closed the descriptor and may
// use its number for a file of its own. False: it has gone, or the heap has no names: it lies on a
// fixed medium, or in unnamed files.
bool pm_dir_ready(void);
// Whether it is, as it stands.
bool pm_dir_is_held(void);
// The same, and what the kernel says of it.
bool pm_dir_stat(struct stat *st);
// From now on `fd` is the heap's directory.
void pm_dir_adopt(int fd);
// Notes which directory that is.
void pm_dir_note(const struct stat *st);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The files of the heap are removed while this process uses it: by `rm`, at the user's last logout
// (logind's RemoveIPC), by age (tmpfiles.d). The process goes on, because it has them open, and all
// would be lost at its end.
//
// The kernel gives a file that has lost its last name no other one (linkat says ENOENT). So the
// heap is copied to new files, which get the old names, and the process goes on with these.
#ifndef PM_REMOVED_H
#define PM_REMOVED_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/message.h"

// Whether that has happened to the superblock, which is the oldest of the files and without which
// the heap cannot be opened. `all`: or to any other file, which takes a system call for each.
bool pm_removed(bool all);
// Makes the files again, and says so. Nobody else stores to the heap meanwhile, and the caller has
// all locks, or no thread is in the allocator. Failed: the heap stays without a name, and `err`
// says why.
int pm_removed_mend(struct pm_error *err);
// The call that it needs and that a filter of the program's forbids; NULL: none.
extern _Atomic(const char *) pm_removed_misses;

// What may remove the files of a heap at this path, for the line at the start. NULL: nothing is
// known that does.
const char *pm_removed_by(const char *dir);

#endif

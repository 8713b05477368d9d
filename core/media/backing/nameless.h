// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Files without names: where they lie, and what messages say. heap_make.h has the heap of such
// files.
#ifndef PM_NAMELESS_H
#define PM_NAMELESS_H

// From now on they lie on the file system of the directory `where`. `what` is the directory that
// they may get.
void pm_nameless_begin(const char *where, const char *what);
// What stands in pm_heap.dir for messages while the heap has no directory.
void pm_nameless_describe(void);
// A new one, or -1 with errno.
int pm_nameless_fd(void);

#endif

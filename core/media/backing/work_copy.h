// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COMMIT_DIR: the heap lies in that directory, and the process works on a copy of its data
// in memory. The copy of a data file is a file in memory without a name. The process maps this copy
// private, in place of the data file itself (commit.h). A commit is brought into both.
//
//   data file on disk    as of the last commit; read once, at the start
//   its copy             the same bytes
//   private mapping      what the process has stored since
//
// The copy goes with the process, so a start never finds one: whatever ends the process or the
// machine, the directory alone is used. Metadata and roots are small and have no copy.
#ifndef PM_WORK_COPY_H
#define PM_WORK_COPY_H

#include "media/heap.h"

// Whether heaps are to have copies. Set before pm_heap_journal().
extern bool pm_work_wanted;

// Makes the copy of the shard's data file, which is open, if copies are wanted. False, with errno.
bool pm_work_make(struct pm_shard *s);
// Gives the copy up. Private mappings of it stay.
void pm_work_drop(struct pm_shard *s);

// What is to be mapped private for the shard's data file; -1: the program has closed it.
int pm_work_fd(const struct pm_file *file);
// Where an offset in the data file lies there.
uint64_t pm_work_offset(const struct pm_file *file, uint64_t offset);
// The copy's bytes, shared; NULL: the shard has none.
char *pm_work_bytes(const struct pm_shard *s);
// The range of the data file reads as zeroes, or lies beyond its end.
void pm_work_empty(const struct pm_shard *s, uint64_t at, uint64_t len);

#endif

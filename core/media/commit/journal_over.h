// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap that is only looked at (PM_OPEN_READONLY), and whose journal has commits that the files do
// not have yet. The look is at what a recovery would make of the files: the commits' pages are laid
// over private mappings of them, in order. No file changes.
//
//   pm_journal_over_super   before anything in the superblock is trusted
//   pm_journal_over_sizes   when the files are open: pm_file.size becomes the length that they
//                           would have
//   pm_journal_over_files   when they are mapped
//
// Where the files have the commits, only the lengths may still differ: the commits' lengths are
// right then, too.
#ifndef PM_JOURNAL_OVER_H
#define PM_JOURNAL_OVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

int pm_journal_over_super(struct pm_error *err);
int pm_journal_over_sizes(struct pm_error *err);
int pm_journal_over_files(struct pm_error *err);
// The same for mappings that may be stored to, after pm_heap_borrow() has made them: the superblock
// and the data. False, with errno.
bool pm_journal_over_borrowed(void);
// A new mapping of the roots file, to be read; NULL, with errno.
const void *pm_journal_over_map_roots(uint64_t offset, uint64_t len);

#endif

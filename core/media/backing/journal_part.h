// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The journal on a fixed medium: it and what it names are parts of one file (fixed.h).
#ifndef PM_JOURNAL_PART_H
#define PM_JOURNAL_PART_H

#include "media/heap.h"
#include "media/journal/journal.h"

// The part; NULL: the file is not a part.
struct pm_file *pm_journal_part(unsigned file);
// Where the bytes [at, at + len) of the part lie in the medium, for a store or a load. False, with
// errno: there is no room for them, or they lie beyond the part's end.
bool pm_journal_part_store(struct pm_file *part, unsigned file, size_t len, uint64_t *at);
bool pm_journal_part_load(const struct pm_file *part, size_t len, uint64_t *at);
// As pm_journal_io's, with its `zero`.
typedef bool pm_journal_zero_fn(unsigned file, uint64_t at, uint64_t len);
bool pm_journal_part_set_length(struct pm_file *part, unsigned file, uint64_t bytes,
                                pm_journal_zero_fn *zero);

// Whether the heap on a fixed medium can have commits; PM_OK also for every other heap.
int pm_journal_part_check(struct pm_error *err);
// Pages that one commit may have there; UINT64_MAX on other media.
uint64_t pm_journal_part_pages(void);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The files that the journal names, and the journal of a heap that is being opened.
#ifndef PM_JOURNAL_FILES_H
#define PM_JOURNAL_FILES_H

#include "heap.h"
#include "journal.h"

// On the files of the open heap.
extern const struct pm_journal_io pm_journal_files;

// The file of the open heap; NULL: there is none of that name.
struct pm_file *pm_journal_heap_file(unsigned file);
// Allocates space in the heap's files for all pages of a commit. False, with errno: there is none.
bool pm_journal_back_with_space(void *buffer, const struct pm_journal_found *found);

// Makes the open heap's journal, or takes the one that is there.
bool pm_journal_open(void);
// Retires the open heap's journal and removes it.
bool pm_journal_remove(void);

// The first step of opening, when the heap is locked: applies what the journal in the heap's
// directory holds, and retires it. With `look`: changes nothing, and fails if there is a commit
// that the files do not hold yet. `super`: the superblock's file is open.
int pm_journal_open_heap(bool look, struct pm_error *err);
// The commit that opening has found: its time, nanoseconds since 1970; 0: none.
extern uint64_t pm_journal_time_found;

#endif

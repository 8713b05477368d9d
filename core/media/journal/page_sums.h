// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Sums of the pages that commits have written: whether a page is as the last commit left it is
// known without its file.
//
// The file would not do. A page of it is written, and not synced before the lap ends. If the disk
// cannot write it, the kernel gives it up, and shows what the disk has: an older page. A page of
// memory that is as that one again is not unchanged: the journal has a later one, which recovery
// would bring back.
//
// The sums have 128 bits: one that is the same by chance would lose what was stored to its page.
//
// One thread at a time, as for commits. Of the commit that is being made a page is noted when it is
// put into the journal, for it may be looked at once more before the instant.
#ifndef PM_PAGE_SUMS_H
#define PM_PAGE_SUMS_H

#include <stdbool.h>
#include <stdint.h>

// Other files are written from now on.
void pm_sums_forget(void);
// The lap has ended: the files have durably what was noted. So a table that has become too large
// may be given up, and one for which there was no memory begins anew.
void pm_sums_trim(void);
// The commit that is being made has these pages, with these contents.
void pm_sums_take(unsigned file, uint64_t first, uint64_t pages, const char *from);
// It comes to nothing.
void pm_sums_undo(void);
// Whether it has this page already, or may have it.
bool pm_sums_taken(unsigned file, uint64_t page);
// The commit is in force, and its pages are in the file. `from`: their contents, NULL: zeroes.
void pm_sums_note(unsigned file, uint64_t first, uint64_t pages, const char *from);
// About what it costs to copy a page and sum it up, in caches that have other things.
#define PM_COMPARE_NS 500
enum pm_sum_is {
    PM_SUM_NONE, // nothing is known of this page: no commit of the lap has it
    PM_SUM_SAME,
    PM_SUM_OTHER, // or no memory was left for the table: then any page may be that
};
// What is PM_SUM_OTHER is taken.
enum pm_sum_is pm_sums_ask(unsigned file, uint64_t page, const char *contents);
// Whether the table has all of these pages: pm_sums_ask() would not say PM_SUM_NONE.
bool pm_sums_known(unsigned file, uint64_t first, uint64_t pages);
// Whether commits in force have written all of these pages, and none of them last as zeroes: then
// their file has space for them.
bool pm_sums_backed(unsigned file, uint64_t first, uint64_t pages);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pages the commits of the lap have written, and a sum of the contents that each has by now.
//
// A page of a file is written, and not synced before the lap ends. If the disk cannot write it, the
// kernel gives it up, and shows what the disk has: an older page. A page of memory that is as that
// one again is not unchanged: the journal has a later one, which recovery would bring back. So a
// page that is the same as the file's is compared with this table as well. Outside of the lap the
// files are durable, and are what they show.
//
// One thread at a time, as for commits. Nothing is undone: only a commit in force is noted.
#ifndef PM_LAP_PAGES_H
#define PM_LAP_PAGES_H

#include <stdbool.h>
#include <stdint.h>

// The lap has none.
void pm_lap_pages_forget(void);
// `from`: their contents, NULL: zeroes.
void pm_lap_pages_note(unsigned file, uint64_t first, uint64_t pages, const char *from);
// Whether the lap has this page with other contents. Where no memory is left for the table, each
// page may be such a one.
bool pm_lap_pages_differ(unsigned file, uint64_t page, const char *contents);

#endif

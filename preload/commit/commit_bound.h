// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COMMIT_PAGES: how much memory the pages may take that the process has stored to since
// they were last in the files. PMAlloc's thread looks from time to time, and makes a commit when
// there are too many. Nobody tells when the kernel copies a page, so the bound is a soft one: the
// pauses between two looks are as long as it takes to get near it.
//
// A commit keeps what it has written: the next one gives back what has not changed since. So there
// are two at once. Pages that the program changes all the time stay copied after both. They may be
// more than the bound: then the next commit comes when there are some more, or after half a second,
// later after a minute: the program may have stored to them only because a commit took long.
#ifndef PM_COMMIT_BOUND_H
#define PM_COMMIT_BOUND_H

#include <stdbool.h>
#include <stdint.h>

// Whether the process has a bound to keep: it has a heap in commit mode.
bool pm_commit_bound_wanted(void);
// Looks. With the commit lock, as what follows. True: a commit is due.
bool pm_commit_bound_reached(void);

// Whether the process has so many more private pages than when this was last true, or less later.
// With the commit lock.
bool pm_commit_bound_grown(uint64_t pages);
// Whether the bound is what the journal of a fixed medium has room for.
bool pm_commit_bound_of_journal(void);
// It was made, or has failed. Looks how many pages are left.
void pm_commit_bound_kept(void);
// The milliseconds until the next look.
uint64_t pm_commit_bound_pause(void);

#endif

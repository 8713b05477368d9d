// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pages a commit looks at. Of a large heap these are the pages that were stored to since the
// last look, by the kernel's record (stored_pages.h):
//
//   a round       threads run. All data files begin their record anew; then the pages that were in
//                 it go to the journal, as far as they differ.
//   ...           another one, of what was stored to meanwhile, and so on.
//   the instant   what was stored to since the last round, the same for all files, is copied to
//                 memory. Roots go to the journal. The record may go on: then the next look finds
//                 the same pages again.
//   afterwards    threads run again, and the copies are looked at.
//
// A page that is looked at twice is in the journal twice, and the second time counts. Where the
// record may lack a page, all copied pages are looked at, at the instant if need be: in the first
// round, after a commit that came to nothing, where the kernel may have stored to pages by itself,
// where a page could not be read. Without a record, or where few pages are copied, there is no
// round. Copies lie at the end of the journal's memory. What has no room there is looked at while
// the threads stand still, and so is all of a commit without rounds: nobody else runs then, or it
// is little.
//
// tests/models/rounds.pml is a model of it. With the commit lock.
#ifndef PM_ROUNDS_H
#define PM_ROUNDS_H

#include <stdatomic.h>

#include "changed_pages.h"

// `length`: of each file, under the last commit. Both stay the caller's.
void pm_rounds_use(struct pm_journal *journal, const uint64_t *length);
// Calls `fn` for each file of the open heap that the journal may name. At the instant; later there
// may be more, which come last.
void pm_rounds_each_file(void (*fn)(unsigned file));
// The length of such a file now.
uint64_t pm_rounds_length(unsigned file);

// About how many pages the process has copied now. Other threads may run.
uint64_t pm_rounds_copied(void);

// The same as it was counted last.
uint64_t pm_rounds_own(void);

// Whether the kernel may store to pages that it was given earlier, without a trace in the record.
// NULL: it does not.
extern bool (*pm_rounds_unseen)(void);

// `count`: copied pages may be counted to know that.
bool pm_rounds_worth(bool count);
// Of a commit in force. Returns how many pages it compared that were the same, without its rounds.
uint64_t pm_rounds_compared(const struct pm_commit_cost *cost);
// Whether they would be if more is copied than is known, and the count of it.
bool pm_rounds_may_be_worth(void);
void pm_rounds_count(void);
// The commit has begun. How many pages were looked at. PM_ROUNDS_CUT: it was cut short, as somebody
// waits for its end; the next one, or the instant, has the rest, too.
#define PM_ROUNDS_CUT UINT64_MAX
uint64_t pm_rounds_make(void);
// Whether somebody waits so. It is asked after each 8 MiB. NULL: nobody does.
extern bool (*pm_rounds_awaited)(void);
// At the instant: whether what the rounds have found may stand.
bool pm_rounds_hold(void);
// Lends the record to a marker (stored_pages.h). All threads are held, and nobody has the lock.
bool pm_rounds_lend(const _Atomic uint32_t *alive);
// The record is not to be believed.
void pm_rounds_forget(void);
// Of the journal's memory this much is left for itself.
#define PM_ROUNDS_JOURNAL ((size_t)2 << 20)
enum pm_rounds_look {
    PM_ROUNDS_NOW,
    PM_ROUNDS_LATER, // copies what rounds have left, as far as there is memory
    PM_ROUNDS_ALL,   // drops all that can be, however long it takes; the record ends then
};
// Looks, and drops pages (pm_changed_begin()).
void pm_rounds_instant(struct pm_commit_cost *cost, enum pm_rounds_look look);
// After the instant: `length` of each file under the last commit.
void pm_rounds_look_at_copies(struct pm_commit_cost *cost, const uint64_t *length);

#endif

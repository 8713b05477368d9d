// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the medium has what the files show. The kernel reports a write that has failed once, to
// whoever syncs next. Then it takes the page for written: it shows the new contents, the medium has
// the old ones, and later syncs succeed. So a sync proves nothing of what was stored before the
// last sync that has failed, and nothing of what another process stored: that one may have got the
// report.
//
//   the word `doubt`, durable --> sync of what was found --> the word is 0 --> "dirty", or a commit
//
//   a sync has failed, or nobody    The word stays. Who opens the heap next writes each page of
//   knows (a kill in between)       it once more before it syncs.
//   a sync fails while the heap     The word is set. It reaches the medium if that takes anything
//   is in use                       at all; else the file shows it, as it shows the lost pages.
//
//   a start relied on reports       The word says so, and is no doubt: a start that promises more
//                                   (pm_doubt_thorough) writes once more what memory has.
//
// A page that was lost, and dropped from memory before it was written once more, is as the medium
// has it. That is the state of an earlier time, and nothing shows it. So who writes a heap once
// more says so.
//
// While a heap is in commit mode its journal does this work (checkpoint.c).
#ifndef PM_DOUBT_H
#define PM_DOUBT_H

#include <stdbool.h>

#include "base/message.h"

// Set before recovery by who promises more than what the files have page by page, or has time:
// where a heap's program was killed without commit mode, pm_doubt_settle() writes once more what
// memory has, since another program's sync may have taken a report. Costs writes of all that.
extern bool pm_doubt_thorough;

// A sync of the open heap's files has failed. Any thread; keeps errno.
void pm_doubt_raise(void);
// Whether one has, and nothing was written once more since.
bool pm_doubt_is_raised(void);
// Why, for a report; NULL: the heap is not in doubt.
const char *pm_doubt_why(void);
// One line, if it is. For who reads the heap and cannot write it once more.
void pm_doubt_say(void);

// Makes all that is in the open heap's files durable, whoever has stored it. No other thread uses
// the heap, and it is SHARED. On PM_OK the word is 0; who calls this flushes the state page before
// the heap changes. PM_OPERATIONAL: a sync has failed, nothing has changed, and the next call
// writes it all once more.
int pm_doubt_settle(struct pm_error *err);
// The same for a heap that is being closed, after its last store. Does not say that it was in
// doubt. False, with errno.
bool pm_doubt_settle_end(void);

#endif

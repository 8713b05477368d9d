// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pieces of the heap were stored to since a moment: the kernel's record of stores
// (base/store_record.h), for a marker that runs beside the program. In commit mode the record is
// the commits' own, who lend it (media/commit/stored_pages.h).
#ifndef PM_LIVE_RECORD_H
#define PM_LIVE_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "media/own_pages.h"

// The program is held. *alive becomes 0 when the marker ends. False: there is no record.
bool pm_live_record_prepare(const _Atomic uint32_t *alive);
// Begins the record. The program may run. False: there is none.
bool pm_live_record_begin(void);
// What the marker has read need not be looked at by the next look. The program may run.
void pm_live_record_settle(void);
// Notes which pages were stored to since the last look, and begins anew. The program is held. How
// many: UINT64_MAX: not all are known.
uint64_t pm_live_record_look(void);
// Calls `fn` for each run of pages that were noted. The program may run.
void pm_live_record_each(pm_own_fn *fn, void *arg);
// Ends it, in pieces: the program's faults wait for each. By who has begun it.
void pm_live_record_end(void);
// The same, where that has ended amid its work. Any thread.
void pm_live_record_drop(void);

// The descriptor that begin and end need; -1: none that was there before.
int pm_live_record_fd(void);

#endif

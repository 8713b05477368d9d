// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pieces of the heap were stored to since a moment: the kernel's record of stores
// (base/store_record.h), for a marker that runs beside the program. In commit mode the record is
// the commits' own, so there is none for others.
#ifndef PM_LIVE_RECORD_H
#define PM_LIVE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "media/own_pages.h"

// Whether it is worth a try. The program is held.
bool pm_live_record_can(void);
// Begins the record. The program may run. False: there is none.
bool pm_live_record_begin(void);
// Notes which pages were stored to since the last look, and begins anew. The program is held. How
// many: UINT64_MAX: not all are known.
uint64_t pm_live_record_look(void);
// Calls `fn` for each run of pages that were noted. The program may run.
void pm_live_record_each(pm_own_fn *fn, void *arg);
// Ends it, in pieces: the program's faults wait for each. By who has begun it.
void pm_live_record_end(void);

#endif

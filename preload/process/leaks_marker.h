// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process that marks beside the program, for pmalloc-info --leaks: it shares the program's
// memory, is none of its threads, and may die of what it reads (gc/live/live_mark.h). It has no
// descriptors of the program's, its end sends no signal, and it ends with the program, or when that
// executes another one: it would keep the heap's lock. live/leaks_door.h has its stages.
//
// Functions are called while all threads are held, by one of them. There is at most one marker.
#ifndef PM_LEAKS_MARKER_H
#define PM_LEAKS_MARKER_H

#include <stdbool.h>

#include "live/leaks_door.h"

// Whether another one is there. It is forgotten if it has ended.
bool pm_marker_is_there(void);
// Whether one could be made.
bool pm_marker_can(void);
// Makes it, after pm_live_begin() and the roots. False: there is none.
bool pm_marker_start(struct pm_marker_seen *seen);
// It marks what the last look has found (live_record.h).
void pm_marker_go_on(void);
// The same, by who calls.
void pm_marker_mark_stored(void);
// Lets it end the record and itself.
void pm_marker_leave(void);
// Ends it at once. Other threads may run.
void pm_marker_end(void);

#endif

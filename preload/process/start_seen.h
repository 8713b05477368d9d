// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Keeps what tools can see of the start (live/start_seen.h).
#ifndef PM_PROCESS_START_SEEN_H
#define PM_PROCESS_START_SEEN_H

#include "live/start_seen.h"

extern struct pm_start_seen pm_start_seen;

// A pm_progress for the recovery of the start.
void pm_start_seen_progress(const char *stage, uint64_t done, uint64_t total);
// After all else of the start, so that whoever sees it can count on that.
void pm_start_seen_stage(enum pm_start_stage stage);

#endif

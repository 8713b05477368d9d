// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Two ways to shorten the log. Both are called with the extent lock held.
#ifndef PM_LOG_COMPACT_H
#define PM_LOG_COMPACT_H

#include "log_entry.h"
#include "media/shard.h"

// Frees the chunks in which no entry stands and that no tombstone pins (the paper's fast GC). Looks
// at the volatile side alone.
void pm_log_drop_dead_chunks(struct pm_shard *s);
// Copies the entries that stand into new chunks, which then are the log (the paper's slow GC). If
// there is no room for the new chunks, the log stays as it is.
void pm_log_compact(struct pm_shard *s, pm_log_moved_fn *moved);

#endif

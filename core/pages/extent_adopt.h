// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents of a heap that is being opened: makes extents from the log's entries, and free extents
// from the gaps between them. The opening thread is the only one. The steps are called in the order
// of this file. Nothing is written before pm_extent_fill_gaps(), so damage is found before the
// first store.
#ifndef PM_EXTENT_ADOPT_H
#define PM_EXTENT_ADOPT_H

#include "extent.h"

// Makes the tables writable for the length of the heap.
int pm_extent_cover(struct pm_error *err);
// The steps for every shard.
// Touches the tables' part for the extents that a loaded log has, before they are made.
void pm_extent_expect(struct pm_shard *s);
// Makes an active extent from an entry that stands in the log. PM_DAMAGE: it lies outside the heap,
// or begins or ends where another extent does (other than by an interrupted resize).
pm_log_each_fn pm_extent_adopt;
// Checks that the adopted extents do not overlap, and sets the frontier.
int pm_extent_check(struct pm_error *err);
// Makes the gaps between the active extents free extents. Without `repair` nothing is written. With
// it, an interrupted resize is finished and the free end of the heap leaves the heap. On a medium
// without units the other gaps become reclaimed, because they may have data and space.
// pm_extent_purge_some() releases their space later, when the extents that recovery frees have
// merged with them.
int pm_extent_fill_gaps(bool repair, struct pm_error *err);
// The same for a heap that is to be borrowed: makes the gaps barred extents, and writes nothing.
int pm_extent_bar_gaps(struct pm_error *err);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An active extent's entry in the bookkeeping log: appended, replaced, ended. To make room for an
// entry the log may move all others. It reports each move, and these functions keep pm_extent.log
// equal to the entry's position. The extent lock is held.
#ifndef PM_EXTENT_ENTRY_H
#define PM_EXTENT_ENTRY_H

#include "extent.h"

// Notes the new position of an entry. The functions below pass it to the log.
pm_log_moved_fn pm_extent_entry_moved;

// Appends the extent's entry; it is durable on return. False: the log has no room.
static inline bool pm_extent_log(struct pm_shard *s, struct pm_extent *e) {
    uint64_t entry = pm_entry_of(e->slab, (enum pm_kind)e->kind, e->page, e->pages);
    e->log = pm_log_append(s, entry, pm_extent_entry_moved);
    return e->log != PM_LOG_NOWHERE;
}
// Replaces the entry of an extent whose length was `old_pages` and has changed in memory. False:
// the log has no room, and the old entry still stands.
bool pm_extent_relog(struct pm_shard *s, struct pm_extent *e, uint32_t old_pages);
// The first page of an entry in the shard's log, from pm_base.
static inline uint64_t pm_extent_entry_page(const struct pm_shard *s, uint64_t entry) {
    return (s->offset >> PM_PAGE_SHIFT) + pm_entry_page(entry);
}
// Ends the entry; that is durable on return. It never fails.
static inline void pm_extent_unlog(struct pm_shard *s, struct pm_extent *e) {
    pm_log_end(s, &e->log, pm_extent_entry_moved);
}
// Ends the entries of a shard's extents from `first` on, linked by `next`; that is durable on
// return.
void pm_extent_unlog_all(struct pm_shard *s, uint32_t first);

#endif

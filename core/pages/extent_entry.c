// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_entry.h"

// Between the new entry of a resize and the end of the old one, two entries stand for one first
// page; the length tells them apart when the log moves them.
void pm_extent_entry_moved(struct pm_shard *s, uint64_t entry, pm_log_pos to) {
    struct pm_resize *resizing = &s->extents->resizing;
    uint64_t page = pm_extent_entry_page(s, entry);
    if (resizing->under_way && page == resizing->page &&
        pm_entry_length(entry) == resizing->old_pages)
        resizing->old = to;
    else
        pm_extents[*pm_page_extent(page)].log = to;
}

// The new entry is durable before the old one is ended. A crash in between leaves two entries for
// one first page. The next opening keeps the longer one (extent_adopt.c). Either length is right,
// because the resize has not yet returned to its caller.
bool pm_extent_relog(struct pm_shard *s, struct pm_extent *e, uint32_t old_pages) {
    struct pm_resize *resizing = &s->extents->resizing;
    *resizing = (struct pm_resize){true, e->page, old_pages, e->log};
    bool good = pm_extent_log(s, e);
    if (good)
        pm_log_end(s, &resizing->old, pm_extent_entry_moved);
    else
        e->log = resizing->old;
    resizing->under_way = false;
    return good;
}

// The entries are erased where they stand, which needs no room in the log and no entry to move.
void pm_extent_unlog_all(struct pm_shard *s, uint32_t first) {
    pm_log_pos low = PM_LOG_NOWHERE, high = 0;
    if (!first || !pm_heap_on_media())
        return;
    for (uint32_t i = first; i; i = pm_extents[i].next) {
        pm_log_pos pos = pm_extents[i].log;
        pm_log_forget(s, pos);
        low = pos < low ? pos : low;
        high = pos > high ? pos : high;
    }
    pm_log_forgotten_between(s, low, high);
}

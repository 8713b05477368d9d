// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extents of a heap that is being opened: from the log's entries to a range without gaps. Single-threaded.
#include "extent_set.h"

#include <errno.h>
#include <string.h>

// The lesser entry of an interrupted resize, to be erased once the heap may be written. The extent lock
// admits one resize at a time, and each opening finishes the one it finds.
pm_log_pos pm_unfinished_resize = PM_LOG_NOWHERE;

static bool finish_resize(uint32_t index, uint64_t pages, pm_log_pos pos) {
    struct pm_extent *e = &pm_extents[index];
    if (pm_unfinished_resize != PM_LOG_NOWHERE)
        return false;
    if (pages <= e->pages) {
        pm_unfinished_resize = pos;
        return true;
    }
    if (pm_page_extent[e->page + pages - 1])
        return false;
    pm_unfinished_resize = e->log;
    e->log = pos;
    pm_active.pages += pages - e->pages;
    pm_bounds_set(e, 0);
    e->pages = (uint32_t)pages;
    pm_bounds_set(e, index);
    return true;
}

int pm_extent_adopt(uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    uint64_t page = pm_entry_page(entry), pages = pm_entry_pages(entry);
    bool slab = pm_entry_type(entry) == PM_ENTRY_SLAB;
    uint64_t heap_pages = pm_heap.data.size >> PM_PAGE_SHIFT,
             slab_len = PM_SLAB_SIZE / PM_PAGE_SIZE;
    if (pages == 0 || page + pages > heap_pages)
        return pm_fail(
            err, PM_DAMAGE,
            "%s: the log has an extent at page %lu of %lu pages, but heap.0 has only %lu "
            "pages; was it truncated?",
            pm_heap.dir, (unsigned long)page, (unsigned long)pages, (unsigned long)heap_pages);
    if (slab && (page % slab_len || pages != slab_len))
        return pm_fail(err, PM_DAMAGE, "%s: the log has a slab at page %lu of %lu pages",
                       pm_heap.dir, (unsigned long)page, (unsigned long)pages);
    uint32_t twin = pm_page_extent[page];
    if (twin && pm_extents[twin].page == page && !slab && !pm_extents[twin].slab &&
        finish_resize(twin, pages, pos))
        return PM_OK;
    if (twin || pm_page_extent[page + pages - 1])
        return pm_fail(err, PM_DAMAGE, "%s: two extents overlap at page %lu", pm_heap.dir,
                       (unsigned long)page);
    uint32_t index = pm_header_new(page, pages);
    if (!index)
        return pm_fail(err, PM_OPERATIONAL, "%s: no memory for the header of an extent",
                       pm_heap.dir);
    struct pm_extent *e = &pm_extents[index];
    e->state = PM_EXTENT_ACTIVE;
    e->slab = slab;
    e->log = pos;
    pm_bounds_set(e, index);
    pm_active.pages += pages;
    pm_active.count++;
    pm_active.slab_pages += slab ? pages : 0;
    return PM_OK;
}

// First page at or after `page` that an extent's bounds lie on, or `end`.
static uint64_t next_bound(uint64_t page, uint64_t end) {
    while (page < end && !pm_page_extent[page])
        page++;
    return page;
}

static bool add_gap(uint64_t page, uint64_t pages, bool repair) {
    uint32_t index = pm_header_new(page, pages);
    if (!index)
        return false;
    bool holes = !repair || pm_heap_uncommit(page << PM_PAGE_SHIFT, pages << PM_PAGE_SHIFT);
    pm_extents[index].zero = holes;
    pm_free_coalesce(index, holes ? PM_EXTENT_RETAINED : PM_EXTENT_RECLAIMED);
    return true;
}

int pm_extent_check(struct pm_error *err) {
    uint64_t end = pm_heap.data.size >> PM_PAGE_SHIFT;
    pm_heap.frontier = pm_heap.data.size;
    for (uint64_t page = next_bound(0, end); page < end; page = next_bound(page, end)) {
        uint32_t index = pm_page_extent[page];
        const struct pm_extent *e = &pm_extents[index];
        uint64_t last = e->page + e->pages - 1;
        bool alone = e->page == page && pm_page_extent[last] == index &&
                     (last == page || next_bound(page + 1, last) == last);
        if (!alone)
            return pm_fail(err, PM_DAMAGE, "%s: two extents overlap near page %lu", pm_heap.dir,
                           (unsigned long)page);
        page = last + 1;
    }
    return PM_OK;
}

// The free end leaves the heap: more than one extent where it is longer than one can be.
static void shrink_end(void) {
    for (uint64_t end = 0; end != pm_heap.frontier;) {
        end = pm_heap.frontier;
        uint32_t last = end ? pm_page_extent[(end >> PM_PAGE_SHIFT) - 1] : 0;
        if (last && pm_extents[last].state == PM_EXTENT_RETAINED)
            pm_frontier_shrink(last);
    }
}

int pm_extent_fill_gaps(bool repair, struct pm_error *err) {
    uint64_t end = pm_heap.data.size >> PM_PAGE_SHIFT;
    for (uint64_t page = 0; page < end;) {
        uint32_t index = pm_page_extent[page];
        if (index) {
            page += pm_extents[index].pages;
            continue;
        }
        uint64_t to = next_bound(page, end);
        if (to - page > PM_ENTRY_PAGES_MAX) // whole regions, which alone can leave the heap's end
            to = (page + PM_ENTRY_PAGES_MAX) / PM_REGION_PAGES * PM_REGION_PAGES;
        if (!add_gap(page, to - page, repair))
            return pm_fail(err, PM_OPERATIONAL, "%s: too many extents", pm_heap.dir);
        page = to;
    }
    if (!repair)
        return PM_OK;
    if (pm_unfinished_resize != PM_LOG_NOWHERE)
        pm_log_erase(pm_unfinished_resize);
    pm_unfinished_resize = PM_LOG_NOWHERE;
    shrink_end();
    if (!pm_heap_complete())
        return pm_fail(err, PM_OPERATIONAL, "%s/slabs.0: cannot be extended: %s", pm_heap.dir,
                       strerror(errno));
    return PM_OK;
}

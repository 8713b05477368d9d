// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_adopt.h"

#include <errno.h>
#include <string.h>

#include "base/lazy_table.h"
#include "extent_entry.h"
#include "free_extents.h"
#include "frontier.h"
#include "media/backing/backing.h"
#include "media/backing/file_space.h"

// Two entries stand for one start: a crash came between the new entry of a resize and the end of
// its old one (extent_entry.c). The longer one stays. False: it cannot be that, because another
// extent ends where the longer one would, or a resize has been found already. A shard has at most
// one: its extent lock admits one resize at a time, and each opening that may write finishes the
// one it finds.
static bool finish_resize(struct pm_shard *s, uint32_t index, uint64_t pages, pm_log_pos pos) {
    struct pm_shard_extents *x = s->extents;
    struct pm_extent *e = &pm_extents[index];
    if (x->unfinished_resize != PM_LOG_NOWHERE)
        return false;
    if (pages <= e->pages) {
        x->unfinished_resize = pos;
        return true;
    }
    if (*pm_page_extent(e->page + pages - 1))
        return false;
    x->unfinished_resize = e->log;
    e->log = pos;
    x->active.pages += pages - e->pages;
    pm_bounds_set(e, 0);
    e->pages = (uint32_t)pages;
    pm_bounds_set(e, index);
    return true;
}

int pm_extent_cover(struct pm_error *err) {
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = pm_range_tables_cover(i, pm_heap.shard[i].data.size);
    return good ? PM_OK
                : pm_fail(err, PM_OPERATIONAL, "%s: no memory for the tables of its extents: %s",
                          pm_heap.dir, pm_strerror(errno));
}

// Not of the page map: most of its pages are for extents that are no slabs.
void pm_extent_expect(struct pm_shard *s) {
    uint64_t count = pm_log_stats(s).live;
    struct pm_extent *header = &pm_extents[pm_index_first(s)];
    if (count && pm_lazy_table_need(&s->extents->headers, (count + 1) * sizeof *header))
        pm_table_touch(header, header + count + 1);
}

int pm_extent_adopt(struct pm_shard *s, uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    uint64_t page = pm_entry_page(entry), pages = pm_entry_length(entry);
    bool slab = pm_entry_is_slab(entry);
    enum pm_kind kind = pm_entry_kind(entry);
    uint64_t shard_pages = s->data.size >> PM_PAGE_SHIFT, slab_len = PM_SLAB_SIZE / PM_PAGE_SIZE;
    if (pages == 0 || page + pages > shard_pages)
        return pm_fail(err, PM_DAMAGE,
                       "%s: the log has an extent at page %lu of %lu pages, but %s has only %lu "
                       "pages; was it truncated?",
                       pm_heap.dir, (unsigned long)page, (unsigned long)pages, s->data.name,
                       (unsigned long)shard_pages);
    page = pm_extent_entry_page(s, entry);
    s->extents->promises |= pages > PM_HUGE_PAGES; // it may have no space yet
    if (!pm_kind_is_known(kind))
        return pm_fail(err, PM_DAMAGE,
                       "%s: the log has an extent of kind %u at page %lu, which this heap cannot "
                       "have",
                       pm_heap.dir, kind, (unsigned long)page);
    if (slab && (page % slab_len || pages != slab_len))
        return pm_fail(err, PM_DAMAGE, "%s: the log has a slab at page %lu of %lu pages",
                       pm_heap.dir, (unsigned long)page, (unsigned long)pages);
    uint32_t other = *pm_page_extent(page);
    if (other && pm_extents[other].page == page && !slab && !pm_extents[other].slab &&
        pm_extents[other].kind == kind && finish_resize(s, other, pages, pos))
        return PM_OK;
    if (other || *pm_page_extent(page + pages - 1))
        return pm_fail(err, PM_DAMAGE, "%s: two extents overlap at page %lu", pm_heap.dir,
                       (unsigned long)page);
    uint32_t index = pm_header_new(s, page, pages);
    if (!index)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory for the header of an extent; see `ulimit -v` and `ulimit -d`",
                       pm_heap.dir);
    struct pm_extent *e = &pm_extents[index];
    e->state = PM_EXTENT_ACTIVE;
    e->slab = slab;
    e->kind = (uint8_t)kind;
    e->log = pos;
    pm_bounds_set(e, index);
    struct pm_active *active = &s->extents->active;
    active->pages += pages;
    active->count++;
    active->slab_pages += slab ? pages : 0;
    return PM_OK;
}

// Returns the first page from `page` on that is the first or last page of an extent; `end`: there
// is none before it.
static uint64_t next_bound(uint64_t page, uint64_t end) {
    while (page < end && !*pm_page_extent(page))
        page++;
    return page;
}

enum gap {
    GAP_LOOK,  // the heap is only looked at: write nothing; nothing will be taken from the gap
    GAP_BAR,   // the heap is to be borrowed: the same, and the gap is barred
    GAP_GIVE,  // release its space now
    GAP_LATER, // reclaimed, maybe with holes; its space is released later, or reused
    GAP_KEEP,  // reclaimed, with space allocated for all of it
};

static bool add_gap(struct pm_shard *s, uint64_t page, uint64_t pages, enum gap how) {
    uint64_t offset = page << PM_PAGE_SHIFT, len = pages << PM_PAGE_SHIFT;
    uint32_t index = pm_header_new(s, page, pages);
    if (!index)
        return false;
    if (how == GAP_BAR) {
        pm_extents[index].state = PM_EXTENT_BARRED;
        pm_bounds_set(&pm_extents[index], index);
        return true;
    }
    bool kept = how == GAP_KEEP && pm_file_back_with_space(&s->data, offset - s->offset, len);
    bool holes =
        how == GAP_LOOK || (how != GAP_LATER && !kept && pm_heap_release_space(offset, len));
    s->extents->gaps_unpromised |= how == GAP_LATER;
    pm_extents[index].zero = holes && pm_heap_released_is_zero();
    pm_extents[index].backed = kept;
    pm_free_coalesce(s, index, holes ? PM_EXTENT_RETAINED : PM_EXTENT_RECLAIMED);
    return true;
}

// On DAX, a part of a unit keeps its space, because a hole would cost the unit its mapping of 2
// MiB. Only whole units are released. If the file system has no room for a heap without holes, or
// cannot say, all of the gap is released.
static bool add_gaps(struct pm_shard *s, uint64_t page, uint64_t to, enum gap how) {
    uint64_t unit = pm_heap_unit() >> PM_PAGE_SHIFT;
    uint64_t from = (page + unit - 1) & ~(unit - 1), end = to & ~(unit - 1);
    bool known = false;
    if (how == GAP_LOOK || how == GAP_BAR || unit == 1)
        return add_gap(s, page, to - page, how);
    if (!pm_shard_has_room(s, 0, s->data.size, &known) || !known)
        return add_gap(s, page, to - page, GAP_GIVE);
    if (from >= end)
        return add_gap(s, page, to - page, GAP_KEEP);
    return (page == from || add_gap(s, page, from - page, GAP_KEEP)) &&
           add_gap(s, from, end - from, GAP_GIVE) &&
           (end == to || add_gap(s, end, to - end, GAP_KEEP));
}

static int overlap_at(uint64_t page, struct pm_error *err) {
    return pm_fail(err, PM_DAMAGE, "%s: two extents overlap near page %lu", pm_heap.dir,
                   (unsigned long)page);
}

// The first extent that begins or ends inside another one.
static int overlap_in(const struct pm_shard *s, struct pm_error *err) {
    uint64_t end = pm_shard_end(s), page = s->offset >> PM_PAGE_SHIFT;
    while ((page = next_bound(page, end)) < end) {
        const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
        uint64_t last = e->page + e->pages - 1;
        if (last != page && next_bound(page + 1, last) != last)
            break;
        page = last + 1;
    }
    return overlap_at(page, err);
}

// Goes from extent to extent, past the inner pages. Those it meets do not overlap each other. An
// extent that it does not meet lies in one of them.
static int check_shard(struct pm_shard *s, struct pm_error *err) {
    struct pm_shard_extents *x = s->extents;
    s->frontier = s->data.size;
    uint64_t end = pm_shard_end(s), page = s->offset >> PM_PAGE_SHIFT, next, met = 0;
    unsigned gaps = 0;
    for (; (next = next_bound(page, end)) < end; met++) {
        uint32_t index = *pm_page_extent(next);
        const struct pm_extent *e = &pm_extents[index];
        uint64_t last = e->page + e->pages - 1;
        pm_extent_prefetch(e);
        if (e->page != next || *pm_page_extent(last) != index)
            return overlap_at(next, err);
        if (page < next && gaps < PM_GAPS_KNOWN)
            x->gap[gaps++] = page;
        page = last + 1;
    }
    for (; gaps < PM_GAPS_KNOWN; page = end)
        x->gap[gaps++] = page;
    return met == x->active.count ? PM_OK : overlap_in(s, err);
}

int pm_extent_check(struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        status = check_shard(&pm_heap.shard[i], err);
    return status;
}

// Cuts the free end off the shard. A very long end is more than one extent, so this loops.
static void shrink_end(struct pm_shard *s) {
    for (uint64_t before = UINT64_MAX; before != s->frontier;) {
        before = s->frontier;
        uint32_t last = before ? *pm_page_extent(pm_shard_end(s) - 1) : 0;
        if (last && pm_extents[last].state == PM_EXTENT_RETAINED)
            pm_frontier_shrink(s, last);
    }
}

// The next gap from `page` on, if it is known; else `page`.
static uint64_t skip_to_gap(const struct pm_shard_extents *x, uint64_t page) {
    unsigned i = 0;
    while (i < PM_GAPS_KNOWN && x->gap[i] < page)
        i++;
    return i < PM_GAPS_KNOWN ? x->gap[i] : page;
}

static int fill_gaps(struct pm_shard *s, enum gap inner, enum gap last, struct pm_error *err) {
    uint64_t end = pm_shard_end(s);
    for (uint64_t page = skip_to_gap(s->extents, 0); page < end;) {
        uint32_t index = *pm_page_extent(page);
        if (index) {
            pm_extent_prefetch(&pm_extents[index]);
            page = skip_to_gap(s->extents, page + pm_extents[index].pages);
            continue;
        }
        uint64_t to = next_bound(page, end);
        enum gap how = to == end ? last : inner;
        // A gap longer than an extent can be becomes several, each of whole regions: the frontier
        // moves by whole regions only.
        if (to - page > PM_ENTRY_PAGES_MAX)
            to = (page + PM_ENTRY_PAGES_MAX) / PM_REGION_PAGES * PM_REGION_PAGES;
        if (!add_gaps(s, page, to, how))
            return pm_fail(err, PM_OPERATIONAL, "%s: too many extents", pm_heap.dir);
        page = to;
    }
    return PM_OK;
}

int pm_extent_bar_gaps(struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        status = fill_gaps(&pm_heap.shard[i], GAP_BAR, GAP_BAR, err);
    return status;
}

static int repair_shard(struct pm_shard *s, struct pm_error *err) {
    struct pm_shard_extents *x = s->extents;
    if (x->unfinished_resize != PM_LOG_NOWHERE)
        pm_log_erase(s, x->unfinished_resize);
    x->unfinished_resize = PM_LOG_NOWHERE;
    shrink_end(s);
    if (!pm_shard_complete(s))
        return pm_fail(err, PM_OPERATIONAL, "%s/%s: cannot be extended: %s", pm_heap.dir,
                       s->slabs.name, pm_strerror(errno));
    return PM_OK;
}

int pm_extent_fill_gaps(bool repair, struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++) {
        status = repair ? fill_gaps(&pm_heap.shard[i], GAP_LATER, GAP_GIVE, err)
                        : fill_gaps(&pm_heap.shard[i], GAP_LOOK, GAP_LOOK, err);
        if (status == PM_OK && repair)
            status = repair_shard(&pm_heap.shard[i], err);
    }
    return status;
}

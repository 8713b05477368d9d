// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "census.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "booklog.h"
#include "extent.h"
#include "slab.h"

static void count_files(struct census *c) {
    static const char *const names[CENSUS_FILES] = {
        "superblock", "heap.0", "slabs.0", "booklog.0", "roots", "bitmaps.0", "morph.0"};
    for (unsigned i = 0; i < CENSUS_FILES; i++) {
        struct stat st;
        c->file[i].name = names[i];
        if (fstatat(pm_heap.dir_fd, names[i], &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        uint64_t allocated = (uint64_t)st.st_blocks * 512;
        c->file[i].length = (uint64_t)st.st_size;
        c->file[i].allocated = allocated;
        if (strcmp(names[i], "heap.0") == 0)
            c->data_bytes = allocated;
        else if (strcmp(names[i], "roots") != 0)
            c->metadata_bytes += allocated;
    }
}

static uint32_t slab_number(const struct pm_extent *e) {
    return (uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT);
}

// Of its present class.
static unsigned slab_live(const struct pm_vslab *v) {
    return pm_classes[v->size_class].blocks - v->free_count - v->blocked;
}

// The sweep has tagged the large blocks that are reachable.
static bool is_live(const struct pm_extent *e) {
    return pm_tag[pm_granule(pm_extent_address(e))] == PM_TAG_EXTENT;
}

static void count_slab(struct census *c, const struct pm_vslab *v) {
    struct census_class *cls = &c->cls[v->size_class];
    cls->slabs++;
    cls->blocks += pm_classes[v->size_class].blocks - v->blocked;
    cls->live += slab_live(v);
    if (v->old_class) {
        c->cls[v->old_class].blocks += v->old_live;
        c->cls[v->old_class].live += v->old_live;
        c->morphing++;
    }
    c->slabs++;
    c->slab_bytes += PM_SLAB_SIZE;
}

static void count_extent(struct census *c, const struct pm_extent *e) {
    struct census_bucket *b = &c->bucket[31 - __builtin_clz(e->pages)];
    uint64_t bytes = pm_extent_bytes(e);
    b->count++;
    b->bytes += bytes;
    b->live += is_live(e);
    b->live_bytes += is_live(e) ? bytes : 0;
    c->extents++;
}

void census_take(struct census *c) {
    memset(c, 0, sizeof *c);
    count_files(c);
    c->frontier = pm_heap.frontier;
    for (uint32_t i = 1; i < pm_extent_top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state != PM_EXTENT_ACTIVE)
            continue;
        c->active_bytes += pm_extent_bytes(e);
        if (e->slab)
            count_slab(c, &pm_vslabs[slab_number(e)]);
        else
            count_extent(c, e);
    }
    c->free_bytes = c->frontier - c->active_bytes;
    struct pm_log_stats log = pm_log_stats();
    c->log_chunks = log.chunks;
    c->log_active = log.active;
    c->log_live = log.live;
}

// ---- the map -----------------------------------------------------------------------------------------

enum kind { FREE, SLAB, LARGE, HUGE_ONE, UNREACHABLE, KINDS };

struct cell {
    uint64_t bytes[KINDS];
    double slab_live; // of bytes[SLAB]
};

static enum kind kind_of(const struct pm_extent *e) {
    if (e->slab)
        return SLAB;
    return !is_live(e) ? UNREACHABLE : e->pages > PM_HUGE_PAGES ? HUGE_ONE : LARGE;
}

static double slab_share(const struct pm_extent *e) {
    const struct pm_vslab *v = &pm_vslabs[slab_number(e)];
    unsigned live = slab_live(v) * pm_classes[v->size_class].size;
    if (v->old_class)
        live += v->old_live * pm_classes[v->old_class].size;
    return (double)live / (double)PM_SLAB_SIZE;
}

// Adds an extent to one cell, as far as it lies in it.
static void add_extent(struct cell *cell, const struct pm_extent *e, uint64_t from, uint64_t to) {
    uint64_t start = e->page << PM_PAGE_SHIFT, end = start + pm_extent_bytes(e);
    uint64_t low = start > from ? start : from, high = end < to ? end : to;
    enum kind kind = kind_of(e);
    cell->bytes[kind] += high - low;
    if (kind == SLAB)
        cell->slab_live += (double)(high - low) * slab_share(e);
}

static char cell_letter(struct cell *cell, uint64_t size) {
    uint64_t used = 0;
    for (enum kind k = SLAB; k < KINDS; k++)
        used += cell->bytes[k];
    cell->bytes[FREE] = size - used;
    enum kind most = FREE;
    for (enum kind k = SLAB; k < KINDS; k++)
        if (cell->bytes[k] > cell->bytes[most])
            most = k;
    if (most != SLAB)
        return ".?LH?"[most];
    unsigned tenths = (unsigned)(10 * cell->slab_live / (double)cell->bytes[SLAB] + 0.5);
    return "0123456789#"[tenths > 10 ? 10 : tenths];
}

void census_map(char *out, unsigned cells) {
    uint64_t at = 0;
    for (unsigned i = 0; i < cells; i++) {
        struct cell cell = {0};
        uint64_t from = (uint64_t)((double)pm_heap.frontier * i / cells);
        uint64_t to = i + 1 == cells ? pm_heap.frontier
                                     : (uint64_t)((double)pm_heap.frontier * (i + 1) / cells);
        // Extents partition the range, and each one's first page has its number. `at` is the first that may
        // reach into this cell.
        while (at < to) {
            const struct pm_extent *e = &pm_extents[pm_page_extent[at >> PM_PAGE_SHIFT]];
            uint64_t end = at + pm_extent_bytes(e);
            if (e->state == PM_EXTENT_ACTIVE)
                add_extent(&cell, e, from, to);
            if (end > to)
                break;
            at = end;
        }
        out[i] = cell_letter(&cell, to - from);
    }
    out[cells] = '\0';
}

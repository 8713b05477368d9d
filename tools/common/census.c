// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "census.h"

#include <string.h>

#include "blocks/population.h"
#include "media/log/log.h"
#include "pages/extent.h"

static void count_kind(struct census *c, unsigned kind, uint64_t blocks, uint64_t bytes) {
    bool words = pm_kind_has_pointers(kind), pinned = pm_kind_is_pinned(kind);
    c->pointer_free += words ? 0 : blocks;
    c->pointer_free_bytes += words ? 0 : bytes;
    c->pinned += pinned ? blocks : 0;
    c->pinned_bytes += pinned ? bytes : 0;
}

// Whether a large block is reachable: the sweep has tagged those that are.
static bool is_live(const struct pm_extent *e) {
    return *pm_tag_at(pm_extent_address(e)) == pm_extent_tag(e);
}

static void count_slab(struct census *c, const struct pm_vslab *v) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(v, population);
    for (unsigned i = 0; i < count; i++) {
        c->cls[population[i].cls].blocks += population[i].blocks;
        c->cls[population[i].cls].live += population[i].used;
        count_kind(c, v->kind, population[i].used,
                   (uint64_t)population[i].used * pm_classes[population[i].cls].size);
    }
    c->cls[population[0].cls].slabs++;
    c->morphing += count == 2;
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
    if (is_live(e))
        count_kind(c, e->kind, 1, bytes);
}

int census_take(struct census *c, struct pm_error *err) {
    memset(c, 0, sizeof *c);
    if (files_measure(pm_heap.dir_fd, pm_heap.dir, &c->files, err) != PM_OK)
        return err->status;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        c->frontier += pm_heap.shard[i].frontier;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        c->active_bytes += pm_extent_bytes(e);
        if (e->slab)
            count_slab(c, &pm_vslabs[pm_extent_slab(e)]);
        else
            count_extent(c, e);
    }
    c->free_bytes = c->frontier - c->active_bytes;
    struct pm_log_stats log = pm_log_stats_sum();
    c->log_chunks = log.chunks;
    c->log_active = log.active;
    c->log_live = log.live;
    return PM_OK;
}

// ---- the map ------------------------------------------------------------------------------------

enum kind { FREE, SLAB, PINNED, LARGE, HUGE_ONE, UNREACHABLE, KINDS };

struct cell {
    uint64_t bytes[KINDS];
    double slab_live; // how many of bytes[SLAB] are live
};

static enum kind kind_of(const struct pm_extent *e) {
    if (e->slab)
        return pm_kind_is_pinned(pm_vslabs[pm_extent_slab(e)].kind) ? PINNED : SLAB;
    if (is_live(e) && pm_kind_is_pinned(e->kind))
        return PINNED;
    return !is_live(e) ? UNREACHABLE : e->pages > PM_HUGE_PAGES ? HUGE_ONE : LARGE;
}

static double slab_share(const struct pm_extent *e) {
    struct pm_population population[2];
    unsigned live = 0, count = pm_slab_populations(&pm_vslabs[pm_extent_slab(e)], population);
    for (unsigned i = 0; i < count; i++)
        live += population[i].used * pm_classes[population[i].cls].size;
    return (double)live / (double)PM_SLAB_SIZE;
}

// Adds the part of an extent that lies in a cell.
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
        return ".?PLH?"[most];
    unsigned tenths = (unsigned)(10 * cell->slab_live / (double)cell->bytes[SLAB] + 0.5);
    return "0123456789#"[tenths > 10 ? 10 : tenths];
}

static void map_shard(const struct pm_shard *s, char *out, unsigned cells) {
    uint64_t at = s->offset;
    for (unsigned i = 0; i < cells; i++) {
        struct cell cell = {0};
        uint64_t from = s->offset + (uint64_t)((double)s->frontier * i / cells);
        uint64_t to = i + 1 == cells
                          ? s->offset + s->frontier
                          : s->offset + (uint64_t)((double)s->frontier * (i + 1) / cells);
        // Extents tile the range, and the page map has each one's index at its first page. `at` is
        // the first extent that may reach into this cell.
        while (at < to) {
            const struct pm_extent *e = &pm_extents[*pm_page_extent(at >> PM_PAGE_SHIFT)];
            uint64_t end = at + pm_extent_bytes(e);
            if (e->state == PM_EXTENT_ACTIVE)
                add_extent(&cell, e, from, to);
            if (end > to)
                break;
            at = end;
        }
        out[i] = cell_letter(&cell, to - from);
    }
}

// Each shard gets cells by its length, one after another.
void census_map(char *out, unsigned cells) {
    uint64_t total = 0, before = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        total += pm_heap.shard[i].frontier;
    for (unsigned i = 0, done = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        before += s->frontier;
        unsigned to = i + 1 == pm_heap.shards || !total
                          ? cells
                          : (unsigned)((double)cells * (double)before / (double)total);
        map_shard(s, out + done, to - done);
        done = to;
    }
    out[cells] = '\0';
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "mark_index.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "blocks/holes.h"
#include "blocks/pinned.h"
#include "blocks/population.h"
#include "marking/forms.h"
#include "media/backing/snapshot.h"
#include "pages/extent.h"

struct pm_mark_index pm_marks;

// As many as there may be: every active extent.
static uint64_t room(void) {
    uint64_t count = 1;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        count += pm_heap.shard[i].extents->active.count;
    return count;
}

// All tables lie in one area, the tables of the largest elements first.
static struct {
    char *start;
    size_t size;
} area;

static void *carve(size_t bytes) {
    size_t at = area.size;
    area.size += bytes;
    return area.start ? area.start + at : NULL;
}

static void lay_out(void) {
    struct pm_mark_index *x = &pm_marks;
    uint64_t count = x->stripes + 1;
    area.size = 0;
    if (x->beside)
        x->bits = carve(((count >> PM_BITS_SHIFT) + 1) * sizeof *x->bits);
    x->large = carve(room() * sizeof *x->large);
    x->kind = carve(count * sizeof *x->kind);
    if (x->beside && pm_holes_found)
        x->holes = carve(count * sizeof *x->holes);
    x->noted = carve(count);
}

static bool reserve(void) {
    area.start = NULL;
    lay_out();
    area.start = pm_os_reserve(area.size);
    lay_out();
    return area.start;
}

static bool is_pointer_free(const struct pm_extent *e) {
    return !pm_kind_has_pointers(e->slab ? pm_vslabs[pm_extent_slab(e)].kind : e->kind);
}

static void add_large(const struct pm_extent *e, bool mixed) {
    struct pm_mark_index *x = &pm_marks;
    uint64_t first = e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    uint64_t last = (e->page + e->pages - 1) << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    x->large[x->larges] = (struct pm_large){
        .page = e->page, .pages = e->pages, .mixed = mixed, .pointer_free = is_pointer_free(e)};
    if (!e->slab && pm_kind_is_pinned(e->kind)) {
        x->large[x->larges].pinned = 1;
        x->large[x->larges].marked = pm_pinned_large_is_used(e);
    }
    for (uint64_t stripe = first; stripe <= last; stripe++)
        if (!x->kind[stripe])
            x->kind[stripe] = PM_STRIPE_LARGE + x->larges;
    x->larges++;
}

// The bits say from the start what media say.
static void add_pinned(uint32_t slab) {
    if (pm_kind_has_pointers(pm_vslabs[slab].kind))
        pm_marks.kind[slab] = PM_STRIPE_PINNED;
    pm_pinned_used(slab, pm_mark_bits(slab, pm_vslabs[slab].size_class));
    if (pm_marks.holes)
        pm_marks.holes[slab] = pm_vslabs[slab].holes;
}

static void add_slab(const struct pm_extent *e) {
    struct pm_mark_index *x = &pm_marks;
    struct pm_population population[2];
    uint32_t slab = pm_extent_slab(e);
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    // Beside the program, blocks of kinds are not swept (pm_arena_reclaim() knows classes by tags).
    unsigned kinds = x->beside ? PM_KIND_ALL : PM_KIND_ALL & ~PM_KIND_TYPED;
    bool plain = count == 1 && !(pm_vslabs[slab].kind & kinds);
    if (pm_kind_is_pinned(pm_vslabs[slab].kind)) {
        add_pinned(slab);
        return;
    }
    if (x->beside && !plain) {
        add_large(e, true);
        return;
    }
    x->kind[slab] = plain ? population[0].cls : PM_STRIPE_MIXED;
    if (x->holes)
        x->holes[slab] = pm_vslabs[slab].holes;
    for (unsigned i = 0; i < count && !x->beside; i++)
        memset(population[i].bits, 0, pm_slab_words(population[i].cls) * sizeof(uint64_t));
}

static bool is_held(const struct pm_extent *e) {
    return e->slab ? pm_vslabs[pm_extent_slab(e)].held : e->held;
}

static void add_shard(const struct pm_shard *s, bool held) {
    uint64_t end = pm_shard_end(s);
    for (uint64_t page = s->offset >> PM_PAGE_SHIFT; page < end;) {
        const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
        bool counts = e->state == PM_EXTENT_ACTIVE && (!held || is_held(e));
        if (counts && e->slab)
            add_slab(e);
        else if (counts)
            add_large(e, false);
        page = e->page + e->pages;
    }
}

int pm_mark_index_make(bool beside, bool held, struct pm_error *err) {
    struct pm_mark_index *x = &pm_marks;
    *x = (struct pm_mark_index){.base = pm_base, .beside = beside};
    x->frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    x->stripes = (x->frontier + PM_SLAB_SIZE - 1) >> PM_SLAB_SHIFT;
    x->high = pm_high_halves(x->base, x->frontier + 1, pm_forms & PM_FORM_TAGGED); // also if empty
    x->bytes = beside ? pm_snapshot : pm_heap_at(0);
    x->bits = pm_slab_bits;
    if (!reserve())
        return pm_fail(err, PM_OPERATIONAL, "%s: no memory to mark with: %s", pm_heap.dir,
                       pm_strerror(errno));
    for (unsigned i = 0; i < pm_heap.shards; i++)
        add_shard(&pm_heap.shard[i], held);
    return PM_OK;
}

void pm_mark_index_publish(void) {
    for (uint32_t i = 0; i < pm_marks.larges; i++) {
        const struct pm_large *l = &pm_marks.large[i];
        pm_extents[*pm_page_extent(l->page)].marked = l->marked;
    }
}

void pm_mark_index_drop(void) {
    if (area.start)
        munmap(area.start, area.size);
    area.start = NULL;
    pm_marks = (struct pm_mark_index){.base = 0};
}

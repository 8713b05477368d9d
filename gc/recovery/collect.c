// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "collect.h"

#include <string.h>

#include "base/bits.h"
#include "block_around.h"
#include "blocks/arena.h"
#include "blocks/holes.h"
#include "blocks/kinds.h"
#include "blocks/morph.h"
#include "kept.h"
#include "pages/extent_take.h"
#include "roots/root_table.h"

const struct pm_collect_watcher *pm_collect_watcher;

static bool is_held(const struct pm_extent *e) {
    return e->slab ? pm_vslabs[pm_extent_slab(e)].held : e->held;
}

// Calls `fn` for each held extent, or for each of the others. `fn` may free it.
static void each(bool held, void (*fn)(uint32_t extent, void *arg), void *arg) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (is_held(&pm_extents[i]) == held)
            fn(i, arg);
}

// From here on the tags say what the program has freed: marking uses the free bits.
static void write_tags(uint32_t extent, void *count) {
    const struct pm_extent *e = &pm_extents[extent];
    ++*(uint64_t *)count;
    if (e->slab)
        pm_arena_write_tags(pm_extent_slab(e));
}

// ---- what is alive ------------------------------------------------------------------------------

// A block in a thread cache is included.
static void mark_new_slab(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    struct pm_population population[2];
    uint64_t used[PM_BITMAP_WORDS];
    for (unsigned n = pm_slab_populations(v, population); n-- > 0;) {
        size_t size = pm_classes[population[n].cls].size;
        pm_population_used(v, &population[n], used);
        PM_EACH_BIT(i, used, pm_slab_words(population[n].cls))
        pm_mark_block(pm_slab_start(slab) + i * size, size);
    }
}

static void mark_new(uint32_t extent, void *unused) {
    const struct pm_extent *e = &pm_extents[extent];
    (void)unused;
    pm_extents[extent].marked = !e->slab; // so that a part of it that was dropped is scanned again
    if (e->slab && pm_kind_has_pointers(pm_vslabs[pm_extent_slab(e)].kind))
        mark_new_slab(pm_extent_slab(e));
    else if (!e->slab && pm_kind_has_pointers(e->kind) && !pm_extent_is_cached(e))
        pm_mark_block(pm_extent_address(e), pm_extent_bytes(e));
}

static void forget_new(uint32_t extent, void *unused) {
    (void)unused;
    pm_extents[extent].marked = 0;
}

static bool is_alive(const void *p) {
    struct pm_block b;
    if (!pm_in_range(p))
        return true;
    pm_block_around(pm_heap_offset(p), true, &b);
    return b.alive;
}

static void only_map(const struct pm_root_bytes *root, void *unused) { (void)root, (void)unused; }

// pm_mark_begin() clears the free bits. So steps that can fail come before.
static int mark(const struct pm_mark_options *how, struct pm_recovery *r, struct pm_error *err) {
    int status = pm_roots_each(only_map, NULL, err);
    if (status == PM_OK)
        status = pm_mark_begin(how, err);
    if (status != PM_OK)
        return status;
    if (pm_roots_each(pm_mark_root, NULL, err) != PM_OK)
        pm_abort(PM_EV_COLLECT_FAILED, "pmalloc_collect: %s", err->text);
    each(false, mark_new, NULL);
    r->overflows = pm_mark_run();
    if (pm_collect_watcher)
        pm_collect_watcher->marked(is_alive);
    pm_mark_end();
    each(false, forget_new, NULL);
    return PM_OK;
}

// ---- sweep --------------------------------------------------------------------------------------

// A mark says that something points to the block; without a tag the program has freed it.
static unsigned keep_tagged(uint32_t slab, const struct pm_population *p, struct pm_recovery *r) {
    size_t size = pm_classes[p->cls].size;
    unsigned live = 0;
    for (unsigned i = 0; i < pm_classes[p->cls].blocks; i++) {
        bool marked = pm_bit(p->bits, i);
        bool tagged = *pm_tag_at(pm_slab_start(slab) + i * size) != PM_TAG_NONE;
        if (marked && !tagged)
            pm_bit_clear(p->bits, i);
        live += marked && tagged;
    }
    r->live_objects += live;
    r->live_bytes += live * size;
    return live;
}

static void sweep_slab(uint32_t slab, struct pm_recovery *r) {
    struct pm_vslab *v = &pm_vslabs[slab];
    struct pm_population population[2];
    unsigned live = 0, count = pm_slab_populations(v, population);
    for (unsigned i = 0; i < count; i++)
        live += keep_tagged(slab, &population[i], r);
    pm_slab_swept(v);
    pm_morph_sync(slab);
    pm_slab_clear_tags(slab);
    v->held = 0;
    v->listed = PM_LISTED_NOT;
    v->next = v->prev = 0;
    if (live) {
        pm_arena_adopt(slab);
        return;
    }
    r->reclaimed_slabs++;
    r->reclaimed_bytes += PM_SLAB_SIZE;
    pm_slab_destroy(slab);
}

static void sweep(uint32_t extent, void *found) {
    struct pm_extent *e = &pm_extents[extent];
    struct pm_recovery *r = found;
    if (e->slab) {
        sweep_slab(pm_extent_slab(e), r);
    } else if (e->marked) {
        r->live_objects++;
        r->live_bytes += pm_extent_bytes(e);
        e->held = e->marked = 0;
        *pm_tag_at(pm_extent_address(e)) = pm_extent_tag(e);
    } else {
        r->reclaimed_extents++;
        r->reclaimed_bytes += pm_extent_bytes(e);
        pm_extent_free_block(pm_extent_address(e));
    }
}

// All of their slabs leave these bins.
static void empty_bins(void) {
    for (unsigned node = 0; node < pm_nodes.count; node++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            struct pm_bin *bin = &pm_arenas[pm_held_arena(node)].bin[cls];
            bin->list = bin->sparse = bin->sparse_last = bin->vacant = 0;
            bin->slabs = bin->empty = bin->idle = bin->blocked = 0;
            bin->lodged_elsewhere = 0;
        }
}

int pm_collect(const struct pm_mark_options *how, struct pm_recovery *r, struct pm_error *err) {
    struct pm_mark_options chosen = *how;
    uint64_t held = 0;
    chosen.held = true;
    memset(r, 0, sizeof *r);
    each(true, write_tags, &held);
    if (!held)
        return PM_OK;
    int status = pm_write_back_data(true, err);
    pm_holes_find(true);
    if (status == PM_OK)
        status = mark(&chosen, r, err);
    if (status != PM_OK)
        return status;
    empty_bins();
    each(true, sweep, r);
    pm_kept_record(true);
    return PM_OK;
}

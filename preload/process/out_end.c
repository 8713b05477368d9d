// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "out_end.h"

#include "base/bits.h"
#include "blocks/population.h"
#include "leaks_marker.h"
#include "live/live_mark.h"
#include "media/backing/backing.h"
#include "media/backing/marks.h"
#include "media/outside.h"
#include "open.h"
#include "pages/extent.h"
#include "recovery/out.h"
#include "roots/root_table.h"

static struct pm_out out;
static bool reached; // only what has been reached is included

static void count_piece(struct pm_out_holder h, uint64_t from, uint64_t to) {
    h.from = from - h.number;
    if (!reached || pm_live_is_reached(pm_heap_at(h.number)))
        pm_out_count(&out, pm_heap_at(from), to - from, &h);
}

// Memory that was never written is not read: on tmpfs a read would take space.
static void count_large(struct pm_out_holder h) {
    struct pm_written known = {0};
    uint64_t at = h.number, end = h.number + h.size, len;
    for (; at < end && (len = pm_heap_next_data(&known, &at, end)); at += len)
        count_piece(h, at, at + len);
}

static void count_slab(uint32_t slab) {
    struct pm_population population[2];
    uint64_t used[PM_BITMAP_WORDS];
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned count = pm_slab_populations(v, population);
    for (unsigned p = 0; p < count && pm_kind_has_pointers(v->kind); p++) {
        uint64_t size = pm_classes[population[p].cls].size;
        pm_population_used(v, &population[p], used);
        PM_EACH_BIT(i, used, pm_slab_words(population[p].cls)) {
            uint64_t block = ((uint64_t)slab << PM_SLAB_SHIFT) + i * size;
            count_piece((struct pm_out_holder){.number = block, .size = size, .type = v->type},
                        block, block + size);
        }
    }
}

// Whether there is little enough to look at, all of which may be read. Under commits the files do
// not say what of a large block was written.
static bool is_small(void) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; bytes <= PM_OUT_BYTES && (i = pm_extent_next_active(i)) != 0;) {
        bytes += pm_extent_bytes(&pm_extents[i]);
        if (!pm_extents[i].slab && pm_heap_is_journaled())
            return false;
    }
    return bytes <= PM_OUT_BYTES && !pm_marks_any();
}

static void count_blocks(void) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        uint64_t at = e->page << PM_PAGE_SHIFT;
        uint16_t type = pm_kind_is_typed(e->kind) ? e->type : 0;
        if (e->slab)
            count_slab(pm_extent_slab(e));
        else if (*pm_tag_at(pm_heap_at(at)) && pm_kind_has_pointers(e->kind))
            count_large(
                (struct pm_out_holder){.number = at, .size = pm_extent_bytes(e), .type = type});
    }
}

// The roots as they are in this process. One that is dropped is nowhere in it.
static void each_root(const struct pm_root_table *table,
                      void fn(const struct pm_root *root, uint32_t number)) {
    for (uint32_t i = 0; i < table->count; i++)
        if (!pm_root_is_dropped(&table->root[i]))
            fn(&table->root[i], i);
}

static void count_root(const struct pm_root *root, uint32_t number) {
    uint64_t skip = -root->address & 7;
    const struct pm_out_holder h = {.in_root = true, .number = number, .from = skip};
    if (root->kind != PM_ROOT_OBJECT && root->length > skip)
        pm_out_count(&out, (const char *)(uintptr_t)root->address + skip, root->length - skip, &h);
}

static void mark_root(const struct pm_root *root, uint32_t unused) {
    (void)unused;
    pm_live_root((const void *)(uintptr_t)root->address, root->length);
}

static bool found_any(void) {
    for (unsigned i = 0; i < out.count; i++)
        if (out.row[i].words)
            return true;
    return false;
}

// Counts again, what the roots reach.
static bool count_reached(const struct pm_root_table *table) {
    struct pm_error ignored;
    pm_marker_end();
    if (pm_live_begin(1, &ignored) != PM_OK)
        return false;
    each_root(table, mark_root);
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++) {
        uint64_t slot = pm_heap_slot(i);
        pm_live_root(&slot, sizeof slot);
    }
    pm_live_mark();
    pm_out_begin(&out);
    reached = true;
    each_root(table, count_root);
    count_blocks();
    pm_live_end();
    return true;
}

static struct pm_out_found found;

void pm_out_end_say(void) { pm_out_say(&found, true); }

bool pm_out_end_look(void) {
    struct pm_error ignored;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    bool filtered = atomic_load_explicit(&pm_outside_nameless, memory_order_relaxed);
    if (!table || filtered || pm_process_recovery()->uncollected || !is_small() ||
        !pm_out_begin(&out))
        return false;
    each_root(table, count_root);
    count_blocks();
    if (found_any() && !count_reached(table))
        return false;
    bool any = pm_out_find(&out, true, &found);
    pm_outside_note_looked();
    return any;
}

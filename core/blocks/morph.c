// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "morph.h"

#include <string.h>

#include "base/bits.h"
#include "base/options.h"
#include "holes.h"
#include "media_lines.h"
#include "morph_media.h"

// A morph must free one in YIELD blocks of the new class, else it is not worth its flushes.
#define YIELD 8

struct pm_morph_counters pm_morph_counters;
uint16_t pm_sparse_free[PM_CLASSES + 1], pm_quiet_below[PM_CLASSES + 1];

_Atomic bool pm_morphs_wait;

bool pm_morph_init(void) {
    unsigned percent = (unsigned)pm_options.morph.number;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        unsigned blocks = pm_classes[cls].blocks;
        // Sparse means used < percent / 100 * blocks. With 0 percent not even an empty slab is.
        unsigned most = (blocks * percent + 99) / 100;
        pm_sparse_free[cls] = (uint16_t)(blocks - most + 1);
        pm_quiet_below[cls] = percent ? pm_sparse_free[cls] : (uint16_t)blocks;
    }
    return pm_population_init() && pm_media_lines_init();
}

// ---- morphing -----------------------------------------------------------------------------------

// Clears all bytes of the slab that are in no kept block, as in a new slab (pm_slab_create): a
// block may be used in part, and what lies in the rest must not look like pointers.
static void clear_gaps(uint32_t slab, unsigned cls, const uint64_t *kept) {
    char *start = pm_slab_start(slab), *from = start;
    size_t size = pm_classes[cls].size;
    PM_EACH_BIT(i, kept, pm_slab_words(cls)) {
        pm_heap_scrub(from, (size_t)(start + i * size - from));
        from = start + (i + 1) * size;
    }
    pm_heap_scrub(from, (size_t)(start + PM_SLAB_SIZE - from));
}

// Fills the vslab of a slab that is now of class `cls` and has `count` listed blocks of class
// `old`; `out` blocks of `cls` are blocked.
static void become(struct pm_vslab *v, uint16_t arena, unsigned cls, unsigned old,
                   const uint64_t *listed, unsigned count, const uint64_t *blocked, unsigned out) {
    unsigned words = pm_slab_words(cls);
    pm_slab_set_home(v, arena, cls);
    v->old_class = count ? (uint8_t)old : 0;
    v->old_live = v->old_listed = (uint16_t)count;
    pm_slab_all_free(v);
    for (unsigned i = 0; i < words; i++)
        pm_free_bits(v)[i] &= ~blocked[i];
    v->blocked = (uint16_t)out;
    v->free_count = (uint16_t)(pm_classes[cls].blocks - out);
    if (!count)
        return;
    memcpy(pm_old_live(v), listed, pm_slab_words(old) * sizeof *listed);
    memcpy(pm_old_listed(v), listed, pm_slab_words(old) * sizeof *listed);
}

bool pm_morph(uint32_t slab, uint16_t arena, unsigned cls) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned old = v->size_class, blocks = pm_classes[old].blocks, count = blocks - v->free_count;
    uint64_t used[PM_BITMAP_WORDS], blocked[PM_BITMAP_WORDS];
    if (!pm_kind_may_morph(v->kind) || atomic_load_explicit(&pm_morphs_wait, memory_order_relaxed))
        return false;
    for (unsigned i = 0; i < pm_slab_words(old); i++)
        used[i] = ~pm_free_bits(v)[i];
    pm_bits_trim(used, blocks);
    unsigned out = pm_blocked_by(used, old, cls, blocked);
    if ((pm_classes[cls].blocks - out) * YIELD < pm_classes[cls].blocks)
        return false;
    if (v->holes && !pm_holes_fill(slab))
        return false;
    if (v->untagged)
        pm_slab_write_tags(slab);
    v->media_line = 0;
    if (count && !pm_morph_media_take(slab, old, &v->media_line))
        return false;
    clear_gaps(slab, old, used);
    if (count)
        pm_morph_media_write(v->media_line, slab, old, cls, used);
    pm_slab_commit_class(slab, cls, v->media_line);
    become(v, arena, cls, old, used, count, blocked, out);
    atomic_fetch_add_explicit(&pm_morph_counters.begun, 1, memory_order_relaxed);
    if (!count)
        atomic_fetch_add_explicit(&pm_morph_counters.ended, 1, memory_order_relaxed);
    return true;
}

void pm_morph_free(uint32_t slab, const void *block) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t offset = (uint32_t)(pm_heap_offset(block) & (PM_SLAB_SIZE - 1));
    pm_bit_clear(pm_old_live(v), pm_block_index(v->old_class, offset));
    v->old_live--;
}

// ---- sync and release ---------------------------------------------------------------------------

// Blocks of the current class become free where a freed old block blocked them and no live old
// block does. The index table on media has dropped the freed ones already.
static void unblock(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned old = v->old_class, cls = v->size_class;
    size_t size = pm_classes[cls].size;
    const uint64_t *live = pm_old_live(v);
    uint64_t *listed = pm_old_listed(v);
    PM_EACH_BIT(i, listed, pm_slab_words(old)) {
        if (pm_bit(live, i))
            continue;
        struct pm_span s = pm_span_of(old, i, cls);
        for (unsigned j = s.first; j < s.end; j++) {
            if (pm_bit(pm_free_bits(v), j) || pm_span_any(live, pm_span_of(cls, j, old)))
                continue;
            pm_bit_set(pm_free_bits(v), j);
            v->free_count++;
            v->blocked--;
            pm_heap_scrub(pm_slab_start(slab) + j * size, size);
        }
    }
    memcpy(listed, live, pm_slab_words(old) * sizeof *listed);
    v->old_listed = v->old_live;
}

static void end_sync(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unblock(slab);
    atomic_fetch_add_explicit(&pm_morph_counters.syncs, 1, memory_order_relaxed);
    if (v->old_live)
        return;
    pm_morph_media_give(v->media_line, slab, v->old_class);
    v->media_line = 0;
    v->old_class = 0;
    atomic_fetch_add_explicit(&pm_morph_counters.ended, 1, memory_order_relaxed);
}

void pm_morph_sync_all(const uint32_t *slab, unsigned count) {
    struct pm_gather tables = {0}, headers = {0};
    for (unsigned i = 0; i < count; i++) {
        struct pm_vslab *v = &pm_vslabs[slab[i]];
        if (v->old_live)
            pm_morph_media_change(v->media_line, slab[i], v->old_class, pm_old_listed(v),
                                  pm_old_live(v), &tables);
        else
            pm_slab_store_class(slab[i], v->size_class, 0, &headers);
    }
    pm_gather_durable(&tables);
    pm_gather_durable(&headers);
    for (unsigned i = 0; i < count; i++)
        end_sync(slab[i]);
}

void pm_morph_sync(uint32_t slab) {
    if (pm_morph_may_sync(&pm_vslabs[slab]))
        pm_morph_sync_all(&slab, 1);
}

// ---- recovery -----------------------------------------------------------------------------------

int pm_morph_adopt(uint32_t slab, struct pm_error *err) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t listed[PM_BITMAP_WORDS], blocked[PM_BITMAP_WORDS];
    unsigned old, cls = v->size_class;
    uint32_t line = v->media_line;
    if (!line)
        return PM_OK;
    int status = pm_morph_media_read(line, slab, cls, &old, listed, err);
    if (status != PM_OK)
        return status;
    if (!pm_morph_media_claim(line, slab, old))
        return pm_fail(err, PM_DAMAGE,
                       "%s/morph.0: the index table of slab %u, line %u, overlaps another's",
                       pm_heap.dir, slab, line);
    unsigned count = pm_bits_count(listed, pm_slab_words(old));
    unsigned out = pm_blocked_by(listed, old, cls, blocked);
    become(v, v->arena, cls, old, listed, count, blocked, out);
    return PM_OK;
}

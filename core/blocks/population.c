// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "population.h"

#include <string.h>

#include "base/bits.h"
#include "base/lazy_table.h"

// The sets live and listed of slabs whose free bits leave no room for them.
static struct pm_slab_bits *apart[2];
#define TABLE                                                                                      \
    { .element = sizeof(struct pm_slab_bits), .shift = PM_SLAB_SHIFT + PM_BITS_SHIFT }
static struct pm_range_table rest[2] = {TABLE, TABLE};

bool pm_population_init(void) {
    bool good = pm_range_tables_reserve(rest, 2, pm_range);
    for (unsigned which = 0; which < 2; which++)
        apart[which] = (void *)rest[which].table[0].map;
    return good;
}

// ---- old blocks --------------------------------------------------------------------------------

static uint64_t *old_bits(const struct pm_vslab *v, unsigned which) {
    unsigned before = pm_slab_words(v->size_class), each = pm_slab_words(v->old_class);
    unsigned room = pm_slab_is_narrow(v->size_class) ? PM_NARROW_WORDS : PM_BITMAP_WORDS;
    if (before + 2 * each > room)
        return pm_bits_of(apart[which], (uint32_t)(v - pm_vslabs), v->old_class);
    return pm_free_bits(v) + before + which * each;
}

uint64_t *pm_old_live(const struct pm_vslab *v) { return old_bits(v, 0); }
uint64_t *pm_old_listed(const struct pm_vslab *v) { return old_bits(v, 1); }

struct pm_span pm_span_of(unsigned cls, unsigned i, unsigned of) {
    uint32_t from = i * pm_classes[cls].size, last = from + pm_classes[cls].size - 1;
    unsigned first = pm_block_index(of, from), end = pm_block_index(of, last) + 1;
    unsigned blocks = pm_classes[of].blocks;
    return (struct pm_span){first < blocks ? first : blocks, end < blocks ? end : blocks};
}

bool pm_span_any(const uint64_t *bits, struct pm_span s) {
    for (unsigned i = s.first; i < s.end; i++)
        if (pm_bit(bits, i))
            return true;
    return false;
}

unsigned pm_blocked_by(const uint64_t *listed, unsigned old, unsigned cls, uint64_t *blocked) {
    unsigned count = 0;
    memset(blocked, 0, pm_slab_words(cls) * sizeof *blocked);
    PM_EACH_BIT(i, listed, pm_slab_words(old)) {
        struct pm_span s = pm_span_of(old, i, cls);
        for (unsigned j = s.first; j < s.end; j++) {
            count += !pm_bit(blocked, j);
            pm_bit_set(blocked, j);
        }
    }
    return count;
}

unsigned pm_population_blocked(const struct pm_vslab *v, uint64_t blocked[PM_BITMAP_WORDS]) {
    if (v->old_class)
        return pm_blocked_by(pm_old_listed(v), v->old_class, v->size_class, blocked);
    memset(blocked, 0, pm_slab_words(v->size_class) * sizeof *blocked);
    return 0;
}

// ---- populations -------------------------------------------------------------------------------

unsigned pm_slab_populations(const struct pm_vslab *v, struct pm_population out[2]) {
    unsigned cls = v->size_class, old = v->old_class;
    if (!cls)
        return 0;
    uint32_t slab = (uint32_t)(v - pm_vslabs);
    unsigned blocks = pm_classes[cls].blocks - v->blocked;
    out[0] =
        (struct pm_population){slab, cls, blocks, blocks - v->free_count, false, pm_free_bits(v)};
    if (!old)
        return 1;
    out[1] = (struct pm_population){slab, old, v->old_live, v->old_live, true, pm_old_live(v)};
    return 2;
}

void pm_population_used(const struct pm_vslab *v, const struct pm_population *p,
                        uint64_t used[PM_BITMAP_WORDS]) {
    unsigned words = pm_slab_words(p->cls);
    if (p->old) {
        memcpy(used, p->bits, words * sizeof *used);
        return;
    }
    pm_population_blocked(v, used);
    for (unsigned w = 0; w < words; w++)
        used[w] = ~(p->bits[w] | used[w]);
    pm_bits_trim(used, pm_classes[p->cls].blocks);
}

bool pm_slab_find(const struct pm_vslab *v, uint32_t offset, struct pm_slab_block *block) {
    unsigned cls = v->size_class, old = v->old_class, i = pm_block_index(cls, offset);
    *block = (struct pm_slab_block){cls, i, false, pm_free_bits(v)};
    bool inside = i < pm_classes[cls].blocks;
    if (!old)
        return inside;
    const uint64_t *listed = pm_old_listed(v);
    unsigned o = pm_block_index(old, offset);
    if (o < pm_classes[old].blocks && pm_bit(listed, o)) {
        *block = (struct pm_slab_block){old, o, true, pm_old_live(v)};
        return true;
    }
    return inside && !pm_span_any(listed, pm_span_of(cls, i, old));
}

// ---- recovery ----------------------------------------------------------------------------------

unsigned pm_slab_stride(const struct pm_vslab *v) {
    uint32_t sizes = 256 | pm_classes[v->size_class].size;
    if (v->old_class)
        sizes |= pm_classes[v->old_class].size;
    return sizes & -sizes;
}

void pm_slab_clear_tags(uint32_t slab) {
    unsigned rows = pm_slab_stride(&pm_vslabs[slab]) >> PM_GRANULE_SHIFT;
    for (unsigned row = 0; row < PM_TAG_ROWS; row += rows)
        memset(&pm_tag[pm_tag_run(slab, row)], PM_TAG_NONE, PM_TAG_RUN);
}

static void set_tags(uint32_t slab, unsigned cls, const uint64_t *used) {
    unsigned tag = pm_slab_tag(&pm_vslabs[slab], cls);
    PM_EACH_BIT(i, used, pm_slab_words(cls)) {
        const char *block = pm_slab_start(slab) + (size_t)i * pm_classes[cls].size;
        *pm_tag_at(block) = (uint8_t)tag;
    }
}

void pm_slab_write_tags(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    struct pm_population population[2];
    uint64_t used[PM_BITMAP_WORDS];
    for (unsigned n = pm_slab_populations(v, population); n-- > 0;) {
        pm_population_used(v, &population[n], used);
        set_tags(slab, population[n].cls, used);
    }
    v->untagged = 0;
}

void pm_slab_kept(struct pm_vslab *v) {
    if (v->old_class) { // its listed blocks are marked, and so are all that they do not block
        pm_slab_swept(v);
        return;
    }
    v->free_count = 0; // the bits are 0, as pm_slab_adopt() has left them
}

void pm_slab_swept(struct pm_vslab *v) {
    unsigned words = pm_slab_words(v->size_class);
    uint64_t *free = pm_free_bits(v), blocked[PM_BITMAP_WORDS];
    v->blocked = (uint16_t)pm_population_blocked(v, blocked);
    for (unsigned w = 0; w < words; w++)
        free[w] = ~(free[w] | blocked[w]);
    pm_bits_trim(free, pm_classes[v->size_class].blocks);
    v->free_count = (uint16_t)pm_bits_count(free, words);
    if (!v->old_class)
        return;
    uint64_t *live = pm_old_live(v);
    const uint64_t *listed = pm_old_listed(v);
    for (unsigned w = 0; w < pm_slab_words(v->old_class); w++)
        live[w] &= listed[w];
    v->old_live = (uint16_t)pm_bits_count(live, pm_slab_words(v->old_class));
}

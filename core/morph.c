// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "morph.h"

#include <string.h>

#include "morph_table.h"
#include "options.h"
#include "table.h"

// A morph that frees less than this part of the slab for the new class is not worth its flushes.
#define YIELD 8

struct pm_morph_counters pm_morph_counters;
uint16_t pm_sparse_free[PM_CLASSES + 1], pm_quiet_below[PM_CLASSES + 1];

static struct pm_table rest;
// In it, by slab number: live and listed, where `free` has no room.
static uint64_t (*apart)[2][PM_BITMAP_WORDS];

bool pm_morph_init(void) {
    unsigned percent = (unsigned)pm_options.morph.number;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        unsigned blocks = pm_classes[cls].blocks;
        // used < percent / 100 * blocks; with 0 not even an empty slab is sparse
        unsigned most = (blocks * percent + 99) / 100;
        pm_sparse_free[cls] = (uint16_t)(blocks - most + 1);
        pm_quiet_below[cls] = percent ? pm_sparse_free[cls] : (uint16_t)blocks;
    }
    bool good = pm_table_reserve(&rest, PM_SLABS * sizeof *apart);
    apart = (void *)rest.map;
    return good && pm_index_init();
}

bool pm_morph_cover(size_t slabs) { return pm_table_need(&rest, slabs * sizeof *apart); }

// ---- the sets ----------------------------------------------------------------------------------------

static uint64_t *set_of(const struct pm_vslab *v, unsigned which) {
    unsigned before = pm_slab_words(v->size_class), each = pm_slab_words(v->old_class);
    if (before + 2 * each > PM_BITMAP_WORDS)
        return apart[v - pm_vslabs][which];
    return pm_vslabs[v - pm_vslabs].free + before + which * each;
}

uint64_t *pm_morph_live(const struct pm_vslab *v) { return set_of(v, 0); }
uint64_t *pm_morph_listed(const struct pm_vslab *v) { return set_of(v, 1); }

static bool get(const uint64_t *bits, unsigned i) { return bits[i / 64] >> i % 64 & 1; }
static void set(uint64_t *bits, unsigned i) { bits[i / 64] |= 1ull << i % 64; }
static void clear(uint64_t *bits, unsigned i) { bits[i / 64] &= ~(1ull << i % 64); }

// Calls the body with i for each bit that is set.
#define EACH_BIT(i, bits, words)                                                                   \
    for (unsigned i##_w = 0; i##_w < (words); i##_w++)                                             \
        for (uint64_t i##_b = (bits)[i##_w]; i##_b; i##_b &= i##_b - 1)                            \
            for (unsigned i = i##_w * 64 + (unsigned)__builtin_ctzll(i##_b), i##_1 = 1; i##_1;     \
                 i##_1 = 0)

// The blocks [first, end) of class `of` that share a byte with block i of class `cls`.
struct span {
    unsigned first, end;
};
static struct span span_of(unsigned cls, unsigned i, unsigned of) {
    uint32_t from = i * pm_classes[cls].size, last = from + pm_classes[cls].size - 1;
    unsigned first = pm_block_index(of, from), end = pm_block_index(of, last) + 1;
    unsigned blocks = pm_classes[of].blocks;
    return (struct span){first < blocks ? first : blocks, end < blocks ? end : blocks};
}

static bool any(const uint64_t *bits, struct span s) {
    for (unsigned i = s.first; i < s.end; i++)
        if (get(bits, i))
            return true;
    return false;
}

// What listed blocks of `old` keep from class `cls`.
static unsigned block_out(const uint64_t *listed, unsigned old, unsigned cls, uint64_t *blocked) {
    unsigned count = 0;
    memset(blocked, 0, pm_slab_words(cls) * sizeof *blocked);
    EACH_BIT(i, listed, pm_slab_words(old)) {
        struct span s = span_of(old, i, cls);
        for (unsigned j = s.first; j < s.end; j++) {
            count += !get(blocked, j);
            set(blocked, j);
        }
    }
    return count;
}

unsigned pm_morph_blocked(const struct pm_vslab *v, uint64_t blocked[PM_BITMAP_WORDS]) {
    return block_out(pm_morph_listed(v), v->old_class, v->size_class, blocked);
}

bool pm_morph_find(const struct pm_vslab *v, uint32_t offset, struct pm_morph_block *block) {
    const uint64_t *listed = pm_morph_listed(v);
    unsigned i = pm_block_index(v->old_class, offset);
    if (i < pm_classes[v->old_class].blocks && get(listed, i)) {
        *block = (struct pm_morph_block){v->old_class, i, true};
        return true;
    }
    i = pm_block_index(v->size_class, offset);
    *block = (struct pm_morph_block){v->size_class, i, false};
    return i < pm_classes[v->size_class].blocks &&
           !any(listed, span_of(v->size_class, i, v->old_class));
}

// ---- morphing ----------------------------------------------------------------------------------------

// As in a new slab: what is left behind the end of a shorter use must not look like pointers.
static void clear_gaps(uint32_t slab, unsigned cls, const uint64_t *kept) {
    char *start = pm_slab_start(slab), *from = start;
    size_t size = pm_classes[cls].size;
    EACH_BIT(i, kept, pm_slab_words(cls)) {
        memset(from, 0, (size_t)(start + i * size - from));
        from = start + (i + 1) * size;
    }
    memset(from, 0, (size_t)(start + PM_SLAB_SIZE - from));
}

// The volatile side of a slab of class `cls` that holds the `listed` blocks of `old`.
static void become(struct pm_vslab *v, unsigned cls, unsigned old, const uint64_t *listed,
                   unsigned count, const uint64_t *blocked, unsigned out) {
    unsigned words = pm_slab_words(cls);
    // Without a lock threads that return blocks read it, to find the lock; under it they look again.
    __atomic_store_n(&v->size_class, (uint8_t)cls, __ATOMIC_RELAXED);
    v->old_class = count ? (uint8_t)old : 0;
    v->old_live = v->old_listed = (uint16_t)count;
    pm_slab_all_free(v);
    for (unsigned i = 0; i < words; i++)
        v->free[i] &= ~blocked[i];
    v->blocked = (uint16_t)out;
    v->free_count = (uint16_t)(pm_classes[cls].blocks - out);
    if (!count)
        return;
    memcpy(pm_morph_live(v), listed, pm_slab_words(old) * sizeof *listed);
    memcpy(pm_morph_listed(v), listed, pm_slab_words(old) * sizeof *listed);
}

bool pm_morph(uint32_t slab, unsigned cls) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned old = v->size_class, blocks = pm_classes[old].blocks, count = blocks - v->free_count;
    uint64_t used[PM_BITMAP_WORDS], blocked[PM_BITMAP_WORDS];
    for (unsigned i = 0; i < pm_slab_words(old); i++)
        used[i] = ~v->free[i];
    if (blocks % 64)
        used[blocks / 64] &= (1ull << blocks % 64) - 1;
    unsigned out = block_out(used, old, cls, blocked);
    if ((pm_classes[cls].blocks - out) * YIELD < pm_classes[cls].blocks)
        return false;
    if (v->stale_tags)
        pm_slab_refresh_tags(slab);
    v->table = 0;
    if (pm_heap.persistent) {
        if (count && !(v->table = pm_index_take(old)))
            return false;
        clear_gaps(slab, old, used);
        if (count)
            pm_index_write(v->table, slab, old, cls, used);
        pm_slab_commit_now(slab, cls, v->table);
    }
    become(v, cls, old, used, count, blocked, out);
    atomic_fetch_add_explicit(&pm_morph_counters.begun, 1, memory_order_relaxed);
    if (!count)
        atomic_fetch_add_explicit(&pm_morph_counters.ended, 1, memory_order_relaxed);
    return true;
}

void pm_morph_free(uint32_t slab, const void *block) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t offset = (uint32_t)(pm_heap_offset(block) & (PM_SLAB_SIZE - 1));
    clear(pm_morph_live(v), pm_block_index(v->old_class, offset));
    v->old_live--;
}

// ---- sync and release --------------------------------------------------------------------------------

// The bytes of old blocks that are gone become blocks of the present class, as far as no live one lies on them.
static void unblock(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned old = v->old_class, cls = v->size_class;
    size_t size = pm_classes[cls].size;
    const uint64_t *live = pm_morph_live(v);
    uint64_t *listed = pm_morph_listed(v);
    EACH_BIT(i, listed, pm_slab_words(old)) {
        if (get(live, i))
            continue;
        struct span s = span_of(old, i, cls);
        for (unsigned j = s.first; j < s.end; j++) {
            if (get(v->free, j) || any(live, span_of(cls, j, old)))
                continue;
            set(v->free, j);
            v->free_count++;
            v->blocked--;
            if (pm_heap.persistent)
                memset(pm_slab_start(slab) + j * size, 0, size);
        }
    }
    memcpy(listed, live, pm_slab_words(old) * sizeof *listed);
    v->old_listed = v->old_live;
}

void pm_morph_sync(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    if (v->old_live == v->old_listed)
        return;
    bool release = v->old_live == 0;
    if (pm_heap.persistent && release)
        pm_slab_commit_now(slab, v->size_class, 0);
    else if (pm_heap.persistent)
        pm_index_change(v->table, slab, v->old_class, pm_morph_listed(v), pm_morph_live(v));
    unblock(slab);
    atomic_fetch_add_explicit(&pm_morph_counters.syncs, 1, memory_order_relaxed);
    if (!release)
        return;
    if (pm_heap.persistent)
        pm_index_give(v->table, v->old_class);
    v->table = 0;
    v->old_class = 0;
    atomic_fetch_add_explicit(&pm_morph_counters.ended, 1, memory_order_relaxed);
}

// ---- recovery ----------------------------------------------------------------------------------------

int pm_morph_adopt(uint32_t slab, uint32_t line, struct pm_error *err) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t listed[PM_BITMAP_WORDS], blocked[PM_BITMAP_WORDS];
    unsigned old, cls = v->size_class, count = 0;
    int status = pm_index_read(line, slab, cls, &old, listed, err);
    if (status != PM_OK)
        return status;
    if (!pm_index_claim(line, old))
        return pm_fail(err, PM_DAMAGE,
                       "%s/morph.0: the index table of slab %u, line %u, overlaps another's",
                       pm_heap.dir, slab, line);
    for (unsigned i = 0; i < pm_slab_words(old); i++)
        count += (unsigned)__builtin_popcountll(listed[i]);
    unsigned out = block_out(listed, old, cls, blocked);
    become(v, cls, old, listed, count, blocked, out);
    v->table = line;
    return PM_OK;
}

void pm_morph_swept(struct pm_vslab *v) {
    unsigned blocks = pm_classes[v->size_class].blocks, words = pm_slab_words(v->size_class);
    uint64_t blocked[PM_BITMAP_WORDS], *live = pm_morph_live(v);
    const uint64_t *listed = pm_morph_listed(v);
    unsigned unused = 0, kept = 0;
    v->blocked = (uint16_t)pm_morph_blocked(v, blocked);
    for (unsigned i = 0; i < words; i++)
        v->free[i] = ~(v->free[i] | blocked[i]);
    if (blocks % 64)
        v->free[words - 1] &= (1ull << blocks % 64) - 1;
    for (unsigned i = 0; i < words; i++)
        unused += (unsigned)__builtin_popcountll(v->free[i]);
    v->free_count = (uint16_t)unused;
    for (unsigned i = 0; i < pm_slab_words(v->old_class); i++)
        kept += (unsigned)__builtin_popcountll(live[i] &= listed[i]);
    v->old_live = (uint16_t)kept;
}

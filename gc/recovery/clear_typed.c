// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "clear_typed.h"

#include "blocks/population.h"
#include "media/backing/backing.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent.h"
#include "typed_words.h"

// The blocks of one extent.
struct blocks {
    uint64_t first, size, count;
    const struct pm_vslab *slab; // NULL: it is a large block
    struct pm_written *known;    // for large blocks
    struct pm_gather stored;
    uint64_t cleared;
};

// A page that was never written is not read: that would take space on tmpfs.
static bool is_written(const struct blocks *b, uint64_t at) {
    uint64_t from = at;
    if (b->slab)
        return !(b->slab->holes >> ((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT) & 1);
    return pm_heap_next_data(b->known, &from, at + sizeof(uint64_t)) && from == at;
}

static void clear_word(uint64_t at, void *arg) {
    struct blocks *b = arg;
    for (uint64_t i = 0; i < b->count && at + sizeof(uint64_t) <= b->size; i++) {
        uint64_t where = b->first + i * b->size + at, *word = pm_heap_at(where);
        if (!is_written(b, where) || !*word)
            continue;
        *word = 0;
        pm_gather_add(&b->stored, word, sizeof *word);
        b->cleared++;
    }
}

static uint64_t clear_extent(const struct pm_extent *e, struct pm_written *known) {
    const struct pm_vslab *v = e->slab ? &pm_vslabs[pm_extent_slab(e)] : NULL;
    struct blocks b = {
        .first = e->page << PM_PAGE_SHIFT, .size = pm_extent_bytes(e), .count = 1, .known = known};
    if (!pm_kind_is_typed(v ? v->kind : e->kind))
        return 0;
    if (v) {
        b.size = pm_classes[v->size_class].size;
        b.count = pm_classes[v->size_class].blocks;
        b.slab = v;
    }
    pm_typed_words_each(v ? v->type : e->type, clear_word, &b);
    if (b.cleared)
        pm_flush(b.stored.from, (size_t)(b.stored.to - b.stored.from));
    return b.cleared;
}

uint64_t pm_clear_typed(void) {
    uint64_t cleared = 0;
    struct pm_written known = {0};
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        cleared += clear_extent(&pm_extents[i], &known);
    if (cleared)
        pm_drain();
    return cleared;
}

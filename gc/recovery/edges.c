// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "edges.h"

#include <stdbool.h>

#include "blocks/population.h"
#include "mark_index.h"
#include "marking/forms.h"
#include "media/backing/backing.h"
#include "pages/extent.h"

// Whose words are looked at.
struct holder {
    pm_edge_fn *fn;
    void *arg;
    uint64_t at; // of the bytes that are looked at
    const char *bytes;
    const char *word;  // that is looked at
    uint64_t frontier; // where the last shard ends
};

static struct holder begin(pm_edge_fn *fn, void *arg) {
    const struct pm_shard *last = &pm_heap.shard[pm_heap.shards - 1];
    return (struct holder){.fn = fn, .arg = arg, .frontier = last->offset + last->frontier};
}

// ---- words --------------------------------------------------------------------------------------

static void take_address(const struct holder *h, uint64_t at, uint64_t address) {
    uint64_t offset = address - pm_base;
    struct pm_block b;
    if (offset > h->frontier)
        return;
    if (offset < h->frontier && pm_block_around(offset, false, &b))
        h->fn(&b, at, h->arg);
    else if (offset && pm_may_be_end(address) && pm_block_around(offset - 1, false, &b))
        h->fn(&b, at, h->arg);
}

static void take_word(const struct holder *h, uint64_t at, uint64_t word) {
    struct pm_block b;
    if (!(word >> PM_TAG_SHIFT)) {
        take_address(h, at, word);
    } else if (pm_forms & PM_FORM_TAGGED) {
        uint64_t offset = pm_untagged(word) - pm_base;
        if (offset < h->frontier && pm_block_around(offset, false, &b) &&
            offset - b.start < PM_LOW_TAGS)
            h->fn(&b, at, h->arg);
    }
}

// Of a word in such a form only the 8 bytes around are known.
static void take_other(void *holder, uint64_t address) {
    const struct holder *h = holder;
    if (!(address >> PM_TAG_SHIFT))
        take_address(h, h->at + (uint64_t)(h->word - h->bytes), address);
}

static void ignore(void *holder, uint64_t address) { (void)holder, (void)address; }

static void look_at(struct holder *h, const char *bytes, uint64_t len, uint64_t address) {
    h->bytes = bytes;
    for (uint64_t i = -address & 7; i + 8 <= len; i += 8) {
        take_word(h, h->at + i, pm_word_at(bytes + i));
        if (!(pm_forms & PM_FORMS_COSTLY))
            continue;
        h->word = bytes + i;
        uint64_t piece = len - i < 15 ? len - i : 15;
        pm_forms_each(h->word, piece, address + i, pm_base, h, take_other, ignore);
    }
}

// ---- blocks -------------------------------------------------------------------------------------

static bool holds_pointers(uint64_t block) {
    const struct pm_vslab *v = &pm_vslabs[block >> PM_SLAB_SHIFT];
    if (v->size_class)
        return pm_kind_has_pointers(v->kind);
    uint32_t extent = *pm_page_extent(block >> PM_PAGE_SHIFT);
    return !extent || pm_kind_has_pointers(pm_extents[extent].kind);
}

static void look_at_large(struct holder *h, const struct pm_block *b, struct pm_written *known) {
    uint64_t at = b->start, end = b->start + b->size, len;
    for (; at < end && (len = pm_heap_next_data(known, &at, end)) != 0; at += len) {
        h->at = at - b->start;
        look_at(h, pm_heap_at(at), len, pm_base + at);
    }
}

// Page by page, without the holes of its slab.
static void look_at_small(struct holder *h, const struct pm_block *b) {
    uint16_t holes = pm_vslabs[b->start >> PM_SLAB_SHIFT].holes;
    for (uint64_t at = b->start, end = b->start + b->size, to; at < end; at = to) {
        to = holes ? (at | (PM_PAGE_SIZE - 1)) + 1 : end;
        to = to < end ? to : end;
        h->at = at - b->start;
        if (!(holes >> ((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT) & 1))
            look_at(h, pm_heap_at(at), to - at, pm_base + at);
    }
}

void pm_edges_of_block(uint64_t block, struct pm_written *known, pm_edge_fn *fn, void *arg) {
    struct holder h = begin(fn, arg);
    struct pm_block b;
    if (!holds_pointers(block) || !pm_block_around(block, false, &b))
        return;
    if (pm_vslabs[block >> PM_SLAB_SHIFT].size_class)
        look_at_small(&h, &b);
    else
        look_at_large(&h, &b, known);
}

void pm_edges_of_bytes(const void *bytes, uint64_t len, uint64_t address, uint64_t from,
                       pm_edge_fn *fn, void *arg) {
    struct holder h = begin(fn, arg);
    h.at = from;
    look_at(&h, bytes, len, address);
}

void pm_edges_of_word(uint64_t word, pm_edge_fn *fn, void *arg) {
    const struct holder h = begin(fn, arg);
    take_word(&h, 0, word);
}

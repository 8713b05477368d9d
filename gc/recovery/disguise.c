// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "disguise.h"

#include <stddef.h>
#include <string.h>

#include "block_around.h"
#include "blocks/population.h"
#include "mark_index.h"
#include "marking/forms.h"
#include "sample.h"

#define SAMPLE ((uint64_t)16 << 20) // bytes that are looked at; larger heaps are sampled
#define PLACES 512u                 // places in a block that are told apart
#define GROUPS 2048u                // a power of two; further ones are not looked at
#define NAMED 8u                    // different blocks that are not reached and must be named,
#define DISTANCES 3u                // different distances
#define NEAR ((uint64_t)64 << 10)   // a shorter way ahead may be any number
#define FOLLOWED 4096u              // blocks that are not reached and are looked at, too,
#define FOLLOWED_BYTES 1024u        // so far; each is there at most once

// Words at one place of the blocks of one size. All large blocks are one group. The table is
// zeroes, and only what is used of it takes memory.
struct group {
    uint32_t key;       // 1 + size class * PLACES + place; 0: not used
    uint32_t leads;     // lead into the heap
    uint32_t exact;     // of these, name the start of a block
    uint32_t distances; // different ones, at most DISTANCES
    uint32_t named;     // different blocks that are not reached, at most NAMED
    uint64_t distance[DISTANCES], block[NAMED];
};
static struct group groups[GROUPS];
static uint16_t used[GROUPS]; // their numbers
static uint32_t used_count;

// A structure may hang by a single word: a block that is named is looked at as if it were reached.
static struct pm_block followed[FOLLOWED];
static uint32_t followed_count;
static uint64_t seen[2 * FOLLOWED]; // starts + 1, by hash

static void follow(const struct pm_block *b) {
    uint32_t at = (uint32_t)(b->start * 0x9e3779b97f4a7c15u >> 40) % (2 * FOLLOWED);
    while (seen[at] && seen[at] != b->start + 1)
        at = (at + 1) % (2 * FOLLOWED);
    if (seen[at] || followed_count == FOLLOWED)
        return;
    seen[at] = b->start + 1;
    followed[followed_count++] = *b;
}

struct looking {
    unsigned form;
    struct pm_disguise *found;
    uint64_t holder, holder_size;
    unsigned cls; // of the holder; 0: a large block
    struct pm_high_halves high;
};

static struct group *group_of(unsigned cls, uint64_t place) {
    uint32_t key = 1 + cls * PLACES + (uint32_t)place;
    for (uint32_t i = 0; i < 8; i++) {
        struct group *g = &groups[(key * 2654435761u + i) % GROUPS];
        if (!g->key) {
            g->key = key;
            used[used_count++] = (uint16_t)(g - groups);
        }
        if (g->key == key)
            return g;
    }
    return NULL;
}

static void forget(void) {
    while (used_count)
        groups[used[--used_count]] = (struct group){0};
    if (followed_count)
        memset(seen, 0, sizeof seen);
    followed_count = 0;
}

static bool add(uint64_t *values, uint32_t *count, uint32_t most, uint64_t value) {
    for (uint32_t i = 0; i < *count; i++)
        if (values[i] == value)
            return false;
    if (*count == most)
        return false;
    values[(*count)++] = value;
    return true;
}

static bool is_evidence(const struct group *g) {
    return g->named == NAMED && g->distances == DISTANCES && g->exact >= g->leads - g->leads / 4;
}

// A word at byte `at` of the holder leads to `offset`.
static void lead(struct looking *l, uint64_t at, uint64_t offset) {
    struct group *g = group_of(l->cls, l->cls ? at < PLACES ? at : PLACES - 1 : 0);
    struct pm_block b;
    if (!g)
        return;
    g->leads++;
    if (!pm_block_around(offset, false, &b) || b.start != offset)
        return;
    g->exact++;
    if (b.alive)
        return;
    add(g->distance, &g->distances, DISTANCES, offset - l->holder - at);
    follow(&b);
    if (add(g->block, &g->named, NAMED, offset))
        *l->found = (struct pm_disguise){l->found->form, l->holder, l->holder_size, at};
}

static void relative(struct looking *l, uint64_t at, uint64_t word) {
    uint64_t offset = l->holder + at + word;
    if (offset < pm_marks.frontier && word && word >= NEAR)
        lead(l, at, offset);
}

static void unaligned(struct looking *l, uint64_t at, uint64_t word) {
    uint64_t offset = word - pm_marks.base;
    if (offset < pm_marks.frontier)
        lead(l, at, offset);
}

// Those that lie so far from an aligned place.
static void look_aside(struct looking *l, uint64_t from, uint64_t to) {
    const char *bytes = pm_marks.bytes + l->holder;
    uint64_t i = from;
    for (; i + 32 <= to; i += 32)
        for (unsigned near = pm_words_near((const void *)(bytes + i), l->high); near;
             near &= near - 1) {
            uint64_t at = i + 8 * (uint64_t)__builtin_ctz(near);
            unaligned(l, at, pm_word_at(bytes + at));
        }
    for (; i + 8 <= to; i += 8)
        unaligned(l, i, pm_word_at(bytes + i));
}

// `from`, a multiple of 8, and `to` are bytes of the holder.
static void look_at(struct looking *l, uint64_t from, uint64_t to) {
    const char *bytes = pm_marks.bytes + l->holder;
    if (l->form == PM_FORM_RELATIVE)
        for (uint64_t i = from; i + 8 <= to; i += 8)
            relative(l, i, pm_word_at(bytes + i));
    else
        for (unsigned aside = 1; aside < 8; aside++)
            look_aside(l, from + aside, to);
}

static void look_at_piece(const struct pm_piece *piece, void *looking) {
    struct looking *l = looking;
    l->cls = piece->cls;
    l->holder = piece->block;
    l->holder_size = piece->size;
    look_at(l, piece->from, piece->to);
}

static unsigned class_around(uint64_t offset) {
    struct pm_slab_block block;
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT);
    bool small = pm_vslabs[slab].size_class &&
                 pm_slab_find(&pm_vslabs[slab], (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block);
    return small ? block.cls : 0;
}

// The blocks that these name are looked at in turn.
static void look_at_followed(struct looking *l) {
    for (uint32_t i = 0; i < followed_count; i++) {
        l->holder = followed[i].start;
        l->holder_size = followed[i].size;
        l->cls = class_around(l->holder);
        if (!pm_mark_holes((uint32_t)(l->holder >> PM_SLAB_SHIFT)))
            look_at(l, 0, l->holder_size < FOLLOWED_BYTES ? l->holder_size : FOLLOWED_BYTES);
    }
}

static bool try_form(struct looking *l, unsigned form) {
    bool found = false;
    if (pm_forms & form)
        return false;
    *l->found = (struct pm_disguise){.form = form};
    l->form = form;
    pm_sample_each(SAMPLE, look_at_piece, l);
    look_at_followed(l);
    for (uint32_t i = 0; i < used_count; i++)
        found |= is_evidence(&groups[used[i]]);
    forget();
    return found;
}

bool pm_disguise_look(struct pm_disguise *found) {
    struct looking l = {.found = found,
                        .high = pm_high_halves(pm_marks.base, pm_marks.frontier + 1, false)};
    if (try_form(&l, PM_FORM_UNALIGNED) || try_form(&l, PM_FORM_RELATIVE))
        return true;
    *found = (struct pm_disguise){0};
    return false;
}

uint64_t pm_disguise_marked(uint64_t *bytes) {
    uint64_t count = 0, total = 0;
    for (uint64_t stripe = 0; stripe < pm_marks.stripes; stripe++) {
        struct pm_population population[2];
        uint32_t kind = pm_marks.kind[stripe];
        unsigned some = kind && kind < PM_STRIPE_LARGE
                            ? pm_slab_populations(&pm_vslabs[stripe], population)
                            : 0;
        for (unsigned p = 0; p < some; p++)
            for (unsigned w = 0; w < pm_slab_words(population[p].cls); w++) {
                unsigned marked = (unsigned)__builtin_popcountll(population[p].bits[w]);
                count += marked;
                total += (uint64_t)marked * pm_classes[population[p].cls].size;
            }
    }
    for (uint32_t i = 0; i < pm_marks.larges; i++)
        if (pm_marks.large[i].marked) {
            count++;
            total += (uint64_t)pm_marks.large[i].pages << PM_PAGE_SHIFT;
        }
    *bytes = total;
    return count;
}

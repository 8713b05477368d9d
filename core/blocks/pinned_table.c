// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pinned_table.h"

#include <string.h>

#include "base/bits.h"
#include "base/crc.h"
#include "base/sizeclass.h"
#include "media/log/dealloc.h"
#include "media/log/lanes.h"
#include "media/persist.h"
#include "media/pinned.h"
#include "media_lines.h"

#define WORDS_OF_LINE (PM_PINNED_LINE / sizeof(uint64_t))
#define BITS_OF_WORD 32u

// clang-format off
#define STRIPE_BITS(size) ((PM_SLAB_SIZE / (size) + PM_PINNED_STRIPES - 1) / PM_PINNED_STRIPES)
#define LINES(cls, size, smaller)                                                                  \
    [cls] = (STRIPE_BITS(size) + PM_PINNED_LINE_BITS - 1) / PM_PINNED_LINE_BITS,
// clang-format on
static const uint8_t stripe_lines[PM_CLASSES + 1] = {PM_CLASS_TABLE(LINES)};

static unsigned lines_of_stripe(unsigned cls) { return stripe_lines[cls]; }

// With the head.
static uint32_t lines_of(unsigned cls) { return 1 + PM_PINNED_STRIPES * lines_of_stripe(cls); }

static unsigned words_of(unsigned cls) { return (unsigned)((lines_of(cls) - 1) * WORDS_OF_LINE); }

// As pm_slab_on_media().
static uint32_t on_media(uint32_t slab) { return slab & (uint32_t)(PM_SHARD_SLABS - 1); }

static uint64_t shard_bits(uint32_t slab) {
    return (uint64_t)pm_shard_number(pm_shard_of_slab(slab)) << PM_PIN_SHARD_SHIFT;
}

// The place of a word of a table.
static uint64_t word_place(uint32_t slab, uint32_t line, unsigned word) {
    return shard_bits(slab) | (((uint64_t)line + 1) * PM_PINNED_LINE + word * sizeof(uint64_t));
}

static unsigned word_of(unsigned cls, unsigned block) {
    unsigned first = block % PM_PINNED_STRIPES * lines_of_stripe(cls) * (unsigned)WORDS_OF_LINE;
    return first + block / PM_PINNED_STRIPES / BITS_OF_WORD;
}

static struct pm_pinned_table *table_at(uint32_t slab, uint32_t line) {
    char *map = pm_shard_of_slab(slab)->morph.map;
    return (struct pm_pinned_table *)(void *)(map + (size_t)line * PM_PINNED_LINE);
}

static uint32_t crc_of(const struct pm_pinned_table *t) {
    return pm_crc32c(0, t, offsetof(struct pm_pinned_table, crc));
}

bool pm_pinned_make(uint32_t slab, unsigned cls, uint32_t *line) {
    *line = 0;
    if (!pm_heap_on_media())
        return true;
    if (!pm_media_lines_take(pm_shard_of_slab(slab), lines_of(cls), line))
        return false;
    struct pm_pinned_table *t = table_at(slab, *line);
    *t = (struct pm_pinned_table){.magic = PM_PINNED_MAGIC,
                                  .blocks = (uint16_t)pm_classes[cls].blocks,
                                  .stripes = PM_PINNED_STRIPES,
                                  .slab = on_media(slab)};
    t->crc = crc_of(t);
    for (unsigned word = 0; word < words_of(cls); word++)
        pm_pin_write(word_place(slab, *line, word), 0);
    pm_flush(t, (size_t)lines_of(cls) * PM_PINNED_LINE);
    return true;
}

void pm_pinned_drop(uint32_t slab, unsigned cls, uint32_t line) {
    if (line)
        pm_media_lines_give(pm_shard_of_slab(slab), line, lines_of(cls));
}

uint64_t pm_pinned_place(uint32_t slab, unsigned cls, uint32_t line, unsigned block) {
    return word_place(slab, line, word_of(cls, block));
}

uint32_t pm_pinned_mask(unsigned block) { return 1u << block / PM_PINNED_STRIPES % BITS_OF_WORD; }

// Inlined twice.
static inline __attribute__((always_inline)) void
change(uint32_t slab, unsigned cls, uint32_t line, unsigned stripe, unsigned index, bool set) {
    if (!pm_heap_on_media())
        return;
    unsigned first = line + 1 + stripe * lines_of_stripe(cls);
    unsigned word = first * (unsigned)WORDS_OF_LINE + index / BITS_OF_WORD;
    uint32_t mask = 1u << index % BITS_OF_WORD;
    uint64_t *at = (uint64_t *)(void *)pm_shard_of_slab(slab)->morph.map + word;
    if (pm_pin_change_at(at, PM_SALT_PINNED(word), set ? PM_PIN_SET(mask) : PM_PIN_CLEAR(mask)))
        pm_make_durable(at, sizeof *at);
}

void pm_pinned_set(uint32_t slab, unsigned cls, uint32_t line, unsigned stripe, unsigned index) {
    change(slab, cls, line, stripe, index, true);
}

void pm_pinned_clear(uint32_t slab, unsigned cls, uint32_t line, unsigned stripe, unsigned index) {
    change(slab, cls, line, stripe, index, false);
}

// ---- recovery -----------------------------------------------------------------------------------

static bool table_is_good(uint32_t slab, uint32_t line, unsigned cls) {
    const struct pm_file *file = &pm_shard_of_slab(slab)->morph;
    if (((uint64_t)line + lines_of(cls)) * PM_PINNED_LINE > file->size)
        return false;
    const struct pm_pinned_table *t = table_at(slab, line);
    return t->magic == PM_PINNED_MAGIC && t->crc == crc_of(t) && t->slab == on_media(slab) &&
           t->blocks == pm_classes[cls].blocks && t->stripes == PM_PINNED_STRIPES;
}

// Bits of a word that no block has.
static uint32_t spare_bits(unsigned cls, unsigned word) {
    unsigned each = lines_of_stripe(cls) * (unsigned)WORDS_OF_LINE;
    unsigned first = word % each * BITS_OF_WORD * PM_PINNED_STRIPES + word / each;
    unsigned blocks = pm_classes[cls].blocks;
    if (first >= blocks)
        return UINT32_MAX;
    unsigned here = (blocks - first + PM_PINNED_STRIPES - 1) / PM_PINNED_STRIPES;
    return here < BITS_OF_WORD ? UINT32_MAX << here : 0;
}

int pm_pinned_check(uint32_t slab, unsigned cls, uint32_t line, struct pm_error *err) {
    struct pm_shard *s = pm_shard_of_slab(slab);
    if (!line || !table_is_good(slab, line, cls))
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s: line %u is not the table of the pinned blocks of slab %u",
                       pm_heap.dir, s->morph.name, line, slab);
    for (unsigned word = 0; word < words_of(cls); word++) {
        bool good;
        uint32_t bits = pm_pin_read(word_place(slab, line, word), &good);
        if (!good || bits & spare_bits(cls, word))
            return pm_fail(err, PM_DAMAGE,
                           "%s/%s: word %u of the pinned blocks of slab %u is damaged", pm_heap.dir,
                           s->morph.name, word, slab);
    }
    if (!pm_media_lines_claim(s, line, lines_of(cls)))
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s: the pinned blocks of slab %u, line %u, overlap "
                       "another's",
                       pm_heap.dir, s->morph.name, slab, line);
    return PM_OK;
}

static uint32_t read_word(uint32_t slab, uint32_t line, unsigned word) {
    bool good;
    uint64_t place = word_place(slab, line, word);
    return pm_dealloc_pinned(place, pm_lanes_pinned(place, pm_pin_read(place, &good)));
}

void pm_pinned_bits(uint32_t slab, unsigned cls, uint32_t line, uint64_t *used) {
    unsigned each = lines_of_stripe(cls) * (unsigned)WORDS_OF_LINE;
    memset(used, 0, (pm_classes[cls].blocks + 63u) / 64 * sizeof *used);
    for (unsigned word = 0; word < words_of(cls); word++) {
        unsigned first = word % each * BITS_OF_WORD * PM_PINNED_STRIPES + word / each;
        for (uint32_t bits = read_word(slab, line, word); bits; bits &= bits - 1)
            pm_bit_set(used, first + (unsigned)__builtin_ctz(bits) * PM_PINNED_STRIPES);
    }
}

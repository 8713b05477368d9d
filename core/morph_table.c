// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "morph_table.h"

#include <stddef.h>

#include "crc.h"
#include "extent.h"
#include "persist.h"
#include "table.h"

#define LINES_MAX ((uint32_t)1 << PM_NOW_SHIFT)

static struct pm_table line_bits;
static uint64_t *used;      // in line_bits: a bit for each line but 0, which is none
static uint32_t cursor = 1; // where the search goes on

bool pm_index_init(void) {
    bool good = pm_table_reserve(&line_bits, LINES_MAX / 8);
    used = (uint64_t *)(void *)line_bits.map;
    return good;
}

// Before lines are noted, as far as the file reaches.
static bool cover(void) {
    return pm_table_need(&line_bits, (pm_heap.morph.size / PM_MORPH_LINE + 63) / 64 * sizeof *used);
}

static unsigned words_of(unsigned cls) {
    return (pm_classes[cls].blocks + PM_MORPH_WORD_BLOCKS - 1) / PM_MORPH_WORD_BLOCKS;
}

static size_t bytes_of(unsigned cls) {
    return sizeof(struct pm_morph_table) + words_of(cls) * sizeof(uint64_t);
}

static uint32_t lines_of(unsigned cls) {
    return (uint32_t)((bytes_of(cls) + PM_MORPH_LINE - 1) / PM_MORPH_LINE);
}

static struct pm_morph_table *table_at(uint32_t line) {
    return (struct pm_morph_table *)(void *)(pm_heap.morph.map + (size_t)line * PM_MORPH_LINE);
}

static uint64_t *words_at(uint32_t line) { return (uint64_t *)(void *)(table_at(line) + 1); }

// ---- lines -------------------------------------------------------------------------------------------

static uint32_t lines_there(void) {
    size_t lines = pm_heap.morph.size / PM_MORPH_LINE;
    return lines < LINES_MAX ? (uint32_t)lines : LINES_MAX;
}

static bool is_used(uint32_t line) { return used[line / 64] >> line % 64 & 1; }

static uint32_t find(uint32_t from, uint32_t to, uint32_t want) {
    uint32_t run = 0;
    for (uint32_t line = from; line < to; line++) {
        if (line % 64 == 0 && used[line / 64] == UINT64_MAX) {
            run = 0;
            line += 63;
            continue;
        }
        run = is_used(line) ? 0 : run + 1;
        if (run == want)
            return line + 1 - want;
    }
    return 0;
}

uint32_t pm_index_take(unsigned old_class) {
    uint32_t want = lines_of(old_class), line;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    line = find(cursor, lines_there(), want);
    if (!line)
        line = find(1, lines_there(), want);
    if (!line && pm_file_grow(&pm_heap.morph, pm_heap.morph.size + PM_PAGE_SIZE))
        line = find(1, lines_there(), want);
    if (!cover())
        line = 0;
    for (uint32_t i = 0; line && i < want; i++)
        used[(line + i) / 64] |= 1ull << (line + i) % 64;
    if (line)
        cursor = line + want;
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return line;
}

void pm_index_give(uint32_t line, unsigned old_class) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    for (uint32_t i = line; i < line + lines_of(old_class); i++)
        used[i / 64] &= ~(1ull << i % 64);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
}

bool pm_index_claim(uint32_t line, unsigned old_class) {
    if (!cover())
        return false;
    for (uint32_t i = line; i < line + lines_of(old_class); i++) {
        if (is_used(i))
            return false;
        used[i / 64] |= 1ull << i % 64;
    }
    return true;
}

// ---- content -----------------------------------------------------------------------------------------

static uint32_t crc_of(const struct pm_morph_table *t) {
    return pm_crc32c(0, t, offsetof(struct pm_morph_table, crc));
}

static uint32_t half(const uint64_t *bits, unsigned word) {
    return (uint32_t)(bits[word / 2] >> word % 2 * 32);
}

static unsigned count_bits(const uint64_t *bits, unsigned cls) {
    unsigned count = 0;
    for (unsigned i = 0; i < pm_slab_words(cls); i++)
        count += (unsigned)__builtin_popcountll(bits[i]);
    return count;
}

void pm_index_write(uint32_t line, uint32_t slab, unsigned old_class, unsigned new_class,
                    const uint64_t *bits) {
    struct pm_morph_table *t = table_at(line);
    uint64_t *word = words_at(line);
    *t = (struct pm_morph_table){.slab = slab,
                                 .old_class = (uint8_t)old_class,
                                 .new_class = (uint8_t)new_class,
                                 .old_count = (uint16_t)count_bits(bits, old_class)};
    t->crc = crc_of(t);
    for (unsigned w = 0; w < words_of(old_class); w++)
        word[w] = pm_seal(half(bits, w), PM_SALT_MORPH(slab, w));
    pm_make_durable(t, bytes_of(old_class));
}

void pm_index_change(uint32_t line, uint32_t slab, unsigned old_class, const uint64_t *from,
                     const uint64_t *to) {
    uint64_t *word = words_at(line);
    unsigned first = UINT32_MAX, last = 0;
    for (unsigned w = 0; w < words_of(old_class); w++) {
        if (half(from, w) == half(to, w))
            continue;
        __atomic_store_n(&word[w], pm_seal(half(to, w), PM_SALT_MORPH(slab, w)), __ATOMIC_RELEASE);
        first = first < w ? first : w;
        last = w;
    }
    if (first <= last)
        pm_make_durable(&word[first], (last - first + 1) * sizeof *word);
}

#define WRONG(...) pm_fail(err, PM_DAMAGE, __VA_ARGS__)

static int read_words(uint32_t line, uint32_t slab, unsigned cls, uint64_t *bits,
                      struct pm_error *err) {
    const uint64_t *word = words_at(line);
    for (unsigned i = 0; i < pm_slab_words(cls); i++)
        bits[i] = 0;
    for (unsigned w = 0; w < words_of(cls); w++) {
        if (!pm_sealed(word[w], PM_SALT_MORPH(slab, w)))
            return WRONG("%s/morph.0: word %u of the index table of slab %u (%016lx) does not "
                         "match its check",
                         pm_heap.dir, w, slab, (unsigned long)word[w]);
        bits[w / 2] |= (uint64_t)pm_unseal(word[w]) << w % 2 * 32;
    }
    unsigned blocks = pm_classes[cls].blocks, count = count_bits(bits, cls);
    if (count == 0 || count > table_at(line)->old_count ||
        (blocks % 64 && bits[blocks / 64] >> blocks % 64))
        return WRONG("%s/morph.0: the index table of slab %u lists %u blocks; it had %u",
                     pm_heap.dir, slab, count, table_at(line)->old_count);
    return PM_OK;
}

int pm_index_read(uint32_t line, uint32_t slab, unsigned new_class, unsigned *old_class,
                  uint64_t bits[PM_BITMAP_WORDS], struct pm_error *err) {
    if (line >= lines_there())
        return WRONG("%s/morph.0 has %zu bytes, too few for line %u, the index table of slab %u; "
                     "was it truncated?",
                     pm_heap.dir, pm_heap.morph.size, line, slab);
    const struct pm_morph_table *t = table_at(line);
    if (t->crc != crc_of(t) || t->slab != slab || t->new_class != new_class || t->old_class == 0 ||
        t->old_class > PM_CLASSES || t->old_class == new_class)
        return WRONG("%s/morph.0: line %u is not the index table of slab %u", pm_heap.dir, line,
                     slab);
    if (lines_of(t->old_class) > lines_there() - line)
        return WRONG("%s/morph.0 has %zu bytes, too few for the index table of slab %u; was it "
                     "truncated?",
                     pm_heap.dir, pm_heap.morph.size, slab);
    *old_class = t->old_class;
    return read_words(line, slab, t->old_class, bits, err);
}

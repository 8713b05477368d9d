// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "morph_media.h"

#include <stddef.h>

#include "base/bits.h"
#include "base/crc.h"
#include "media/persist.h"
#include "media_lines.h"

static unsigned words_of(unsigned cls) {
    return (pm_classes[cls].blocks + PM_MORPH_WORD_BLOCKS - 1) / PM_MORPH_WORD_BLOCKS;
}

static size_t bytes_of(unsigned cls) {
    return sizeof(struct pm_morph_table) + words_of(cls) * sizeof(uint64_t);
}

static uint32_t lines_of(unsigned cls) {
    return (uint32_t)((bytes_of(cls) + PM_MORPH_LINE - 1) / PM_MORPH_LINE);
}

static struct pm_morph_table *table_at(const struct pm_shard *s, uint32_t line) {
    return (struct pm_morph_table *)(void *)(s->morph.map + (size_t)line * PM_MORPH_LINE);
}

static uint64_t *words_at(const struct pm_shard *s, uint32_t line) {
    return (uint64_t *)(void *)(table_at(s, line) + 1);
}

bool pm_morph_media_take(uint32_t slab, unsigned old_class, uint32_t *line) {
    *line = 0;
    return !pm_heap_on_media() ||
           pm_media_lines_take(pm_shard_of_slab(slab), lines_of(old_class), line);
}

void pm_morph_media_give(uint32_t line, uint32_t slab, unsigned old_class) {
    if (pm_heap_on_media())
        pm_media_lines_give(pm_shard_of_slab(slab), line, lines_of(old_class));
}

bool pm_morph_media_claim(uint32_t line, uint32_t slab, unsigned old_class) {
    return pm_media_lines_claim(pm_shard_of_slab(slab), line, lines_of(old_class));
}

// ---- content ------------------------------------------------------------------------------------

static uint32_t crc_of(const struct pm_morph_table *t) {
    return pm_crc32c(0, t, offsetof(struct pm_morph_table, crc));
}

static uint32_t half(const uint64_t *bits, unsigned word) {
    return (uint32_t)(bits[word / 2] >> word % 2 * 32);
}

static unsigned count_bits(const uint64_t *bits, unsigned cls) {
    return pm_bits_count(bits, pm_slab_words(cls));
}

void pm_morph_media_write(uint32_t line, uint32_t slab, unsigned old_class, unsigned new_class,
                          const uint64_t *bits) {
    const struct pm_shard *s = pm_shard_of_slab(slab);
    if (!pm_heap_on_media())
        return;
    struct pm_morph_table *t = table_at(s, line);
    uint64_t *word = words_at(s, line);
    *t = (struct pm_morph_table){.slab = pm_slab_on_media(slab),
                                 .old_class = (uint8_t)old_class,
                                 .new_class = (uint8_t)new_class,
                                 .old_count = (uint16_t)count_bits(bits, old_class)};
    t->crc = crc_of(t);
    for (unsigned w = 0; w < words_of(old_class); w++)
        word[w] = pm_seal(half(bits, w), PM_SALT_MORPH(pm_slab_on_media(slab), w));
    pm_make_durable(t, bytes_of(old_class));
}

void pm_morph_media_change(uint32_t line, uint32_t slab, unsigned old_class, const uint64_t *from,
                           const uint64_t *to, struct pm_gather *stored) {
    const struct pm_shard *s = pm_shard_of_slab(slab);
    if (!pm_heap_on_media())
        return;
    uint64_t *word = words_at(s, line);
    for (unsigned w = 0; w < words_of(old_class); w++) {
        if (half(from, w) == half(to, w))
            continue;
        __atomic_store_n(&word[w], pm_seal(half(to, w), PM_SALT_MORPH(pm_slab_on_media(slab), w)),
                         __ATOMIC_RELEASE);
        pm_gather_add(stored, &word[w], sizeof *word);
    }
}

#define WRONG(...) pm_fail(err, PM_DAMAGE, __VA_ARGS__)

static int read_words(uint32_t line, uint32_t slab, unsigned cls, uint64_t *bits,
                      struct pm_error *err) {
    const struct pm_shard *s = pm_shard_of_slab(slab);
    const uint64_t *word = words_at(s, line);
    for (unsigned i = 0; i < pm_slab_words(cls); i++)
        bits[i] = 0;
    for (unsigned w = 0; w < words_of(cls); w++) {
        if (!pm_sealed(word[w], PM_SALT_MORPH(pm_slab_on_media(slab), w)))
            return WRONG("%s/%s: word %u of the index table of slab %u (%016lx) does not "
                         "match its check",
                         pm_heap.dir, s->morph.name, w, slab, (unsigned long)word[w]);
        bits[w / 2] |= (uint64_t)pm_unseal(word[w]) << w % 2 * 32;
    }
    unsigned blocks = pm_classes[cls].blocks, count = count_bits(bits, cls);
    if (count == 0 || count > table_at(s, line)->old_count ||
        (blocks % 64 && bits[blocks / 64] >> blocks % 64))
        return WRONG("%s/%s: the index table of slab %u lists %u blocks; it had %u", pm_heap.dir,
                     s->morph.name, slab, count, table_at(s, line)->old_count);
    return PM_OK;
}

int pm_morph_media_read(uint32_t line, uint32_t slab, unsigned new_class, unsigned *old_class,
                        uint64_t bits[PM_BITMAP_WORDS], struct pm_error *err) {
    const struct pm_shard *s = pm_shard_of_slab(slab);
    *old_class = 0; // unless the table says which
    if (line >= pm_media_lines_there(s))
        return WRONG("%s/%s has %zu bytes, too few for line %u, the index table of slab %u; "
                     "was it truncated?",
                     pm_heap.dir, s->morph.name, s->morph.size, line, slab);
    const struct pm_morph_table *t = table_at(s, line);
    if (t->crc != crc_of(t) || t->slab != pm_slab_on_media(slab) || t->new_class != new_class ||
        t->old_class == 0 || t->old_class > PM_CLASSES || t->old_class == new_class)
        return WRONG("%s/%s: line %u is not the index table of slab %u", pm_heap.dir, s->morph.name,
                     line, slab);
    if (lines_of(t->old_class) > pm_media_lines_there(s) - line)
        return WRONG("%s/%s has %zu bytes, too few for the index table of slab %u; was it "
                     "truncated?",
                     pm_heap.dir, s->morph.name, s->morph.size, slab);
    *old_class = t->old_class;
    return read_words(line, slab, t->old_class, bits, err);
}

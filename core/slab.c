// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "slab.h"

#include <string.h>

#include "crc.h"
#include "extent.h"
#include "morph.h"
#include "persist.h"
#include "table.h"

#define SLAB_PAGES (PM_SLAB_SIZE >> PM_PAGE_SHIFT)

struct pm_vslab *pm_vslabs;

static struct pm_table vslabs;

bool pm_slab_init(void) {
    bool good = pm_table_reserve(&vslabs, PM_SLABS * sizeof *pm_vslabs);
    pm_vslabs = (struct pm_vslab *)vslabs.map;
    return good && pm_morph_init();
}

bool pm_slab_cover(uint64_t bytes) {
    size_t slabs = (bytes + PM_SLAB_SIZE - 1) / PM_SLAB_SIZE;
    return pm_table_need(&vslabs, slabs * sizeof *pm_vslabs) && pm_morph_cover(slabs);
}

static struct pm_slab_header *media(uint32_t slab) {
    return (struct pm_slab_header *)pm_heap.slabs.map + slab;
}

uint32_t pm_slab_header_crc(uint32_t slab, const struct pm_slab_header *h) {
    struct pm_slab_header whole = *h;
    whole.now = 0;
    return pm_crc32c(pm_crc32c(0, &slab, sizeof slab), &whole,
                     offsetof(struct pm_slab_header, crc));
}

void pm_slab_all_free(struct pm_vslab *v) {
    unsigned cls = v->size_class, blocks = pm_classes[cls].blocks;
    memset(v->free, 0, sizeof v->free[0] * pm_slab_words(cls));
    memset(v->free, 0xff, blocks / 64 * 8);
    if (blocks % 64)
        v->free[blocks / 64] = (1ull << blocks % 64) - 1;
    v->free_count = (uint16_t)blocks;
}

static uint64_t now_word(uint32_t slab, unsigned cls, uint32_t line) {
    return pm_seal(cls << PM_NOW_SHIFT | line, PM_SALT_NOW(slab));
}

void pm_slab_commit_now(uint32_t slab, unsigned cls, uint32_t line) {
    pm_commit_u64(&media(slab)->now, now_word(slab, cls, line));
}

static void write_header(uint32_t slab, unsigned cls) {
    struct pm_slab_header *h = media(slab);
    *h = (struct pm_slab_header){
        .magic = PM_SLAB_MAGIC, .size_class = (uint8_t)cls, .kind = PM_KIND_CONSERVATIVE};
    h->crc = pm_slab_header_crc(slab, h);
    h->now = pm_heap_morphs() ? now_word(slab, cls, 0) : 0;
    pm_make_durable(h, sizeof *h);
}

uint32_t pm_slab_create(unsigned cls, uint16_t arena) {
    uint32_t extent = pm_extent_take(SLAB_PAGES, SLAB_PAGES);
    if (!extent)
        return 0;
    uint32_t slab = (uint32_t)(pm_extents[extent].page / SLAB_PAGES);
    if (pm_heap.persistent) {
        // The bytes of a block behind what was asked for are never written by anybody; pointers that an earlier
        // use left there would keep what they name alive for good.
        if (!pm_extents[extent].zero)
            memset(pm_slab_start(slab), 0, PM_SLAB_SIZE);
        write_header(slab, cls);
    }
    if (!pm_extent_publish(extent, true))
        return 0;
    struct pm_vslab *v = &pm_vslabs[slab];
    v->next = v->prev = 0;
    v->listed = v->stale_tags = v->old_class = 0;
    v->blocked = 0;
    v->extent = extent;
    v->arena = arena;
    __atomic_store_n(&v->size_class, (uint8_t)cls, __ATOMIC_RELAXED);
    pm_slab_all_free(v);
    return slab + 1;
}

void pm_slab_destroy(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->size_class = 0;
    pm_extent_release(v->extent);
}

unsigned pm_slab_pop(uint32_t slab, void **blocks, unsigned want) {
    struct pm_vslab *v = &pm_vslabs[slab];
    size_t size = pm_classes[v->size_class].size;
    char *start = pm_slab_start(slab);
    unsigned got = 0;
    for (unsigned word = 0; got < want && got < v->free_count; word++) {
        uint64_t bits = v->free[word];
        for (; bits && got < want; bits &= bits - 1)
            blocks[got++] = start + (word * 64 + (unsigned)__builtin_ctzll(bits)) * size;
        v->free[word] = bits;
    }
    v->free_count = (uint16_t)(v->free_count - got);
    return got;
}

void pm_slab_push(uint32_t slab, void *block) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned index =
        pm_block_index(v->size_class, (uint32_t)(pm_heap_offset(block) & (PM_SLAB_SIZE - 1)));
    v->free[index / 64] |= 1ull << index % 64;
    v->free_count++;
}

static void set_tag(uint32_t slab, unsigned cls, unsigned i) {
    pm_tag[pm_granule(pm_slab_start(slab) + (size_t)i * pm_classes[cls].size)] = (uint8_t)cls;
}

void pm_slab_refresh_tags(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class, old = v->old_class;
    uint64_t blocked[PM_BITMAP_WORDS] = {0};
    if (old)
        pm_morph_blocked(v, blocked);
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++)
        if (!((v->free[i / 64] | blocked[i / 64]) >> i % 64 & 1))
            set_tag(slab, cls, i);
    for (unsigned i = 0; i < (old ? pm_classes[old].blocks : 0); i++)
        if (pm_morph_live(v)[i / 64] >> i % 64 & 1)
            set_tag(slab, old, i);
    v->stale_tags = 0;
}

// What `now` says, or the class as made in a heap that does not morph; 0 when it is no such word.
static unsigned class_now(uint32_t slab, const struct pm_slab_header *h, uint32_t *line) {
    uint32_t value = pm_unseal(h->now);
    *line = 0;
    if (!pm_heap_morphs())
        return h->now ? 0 : h->size_class;
    if (!pm_sealed(h->now, PM_SALT_NOW(slab)))
        return 0;
    *line = value & ((1u << PM_NOW_SHIFT) - 1);
    return value >> PM_NOW_SHIFT;
}

unsigned pm_slab_media_class(uint32_t slab, uint32_t *line) {
    const struct pm_slab_header *h = media(slab);
    uint32_t at;
    unsigned cls = h->crc == pm_slab_header_crc(slab, h) ? class_now(slab, h, &at) : 0;
    if (line)
        *line = cls ? at : 0;
    return cls;
}

int pm_slab_adopt(uint32_t slab, uint32_t extent, struct pm_error *err) {
    if (((size_t)slab + 1) * sizeof(struct pm_slab_header) > pm_heap.slabs.size)
        return pm_fail(err, PM_DAMAGE,
                       "%s/slabs.0 has %zu bytes, too few for slab %u; was it truncated?",
                       pm_heap.dir, pm_heap.slabs.size, slab);
    const struct pm_slab_header *h = media(slab);
    uint32_t line;
    unsigned cls = class_now(slab, h, &line);
    if (h->magic != PM_SLAB_MAGIC || h->crc != pm_slab_header_crc(slab, h) || !cls)
        return pm_fail(err, PM_DAMAGE, "%s/slabs.0: the header of slab %u is damaged", pm_heap.dir,
                       slab);
    if (h->size_class == 0 || h->size_class > PM_CLASSES || h->data_offset || cls > PM_CLASSES)
        return pm_fail(err, PM_DAMAGE,
                       "%s/slabs.0: slab %u has class %u, which this program does not know",
                       pm_heap.dir, slab, cls > PM_CLASSES ? cls : h->size_class);
    struct pm_vslab *v = &pm_vslabs[slab];
    v->extent = extent;
    v->size_class = (uint8_t)cls;
    v->old_class = 0;
    v->blocked = 0;
    pm_slab_all_free(v);
    return line ? pm_morph_adopt(slab, line, err) : PM_OK;
}

void pm_slab_settle(void) {
    if (!pm_heap_morphs())
        return; // headers that never change
    pm_flush(pm_heap.slabs.map, pm_heap.slabs.size);
    pm_flush(pm_heap.morph.map, pm_heap.morph.size);
}

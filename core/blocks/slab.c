// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "slab.h"

#include <string.h>

#include "base/bits.h"
#include "base/crc.h"
#include "base/lazy_table.h"
#include "extent_cache.h"
#include "kinds.h"
#include "media/persist.h"
#include "pages/extent_group.h"
#include "pages/extent_holes.h"
#include "pages/extent_take.h"
#include "pinned_table.h"

#define SLAB_PAGES (PM_SLAB_SIZE >> PM_PAGE_SHIFT)

struct pm_vslab *pm_vslabs;
struct pm_slab_bits *pm_slab_bits;

static struct pm_range_table tables[] = {
    {.element = sizeof *pm_vslabs, .shift = PM_SLAB_SHIFT},
    {.element = sizeof *pm_slab_bits, .shift = PM_SLAB_SHIFT + PM_BITS_SHIFT},
};

bool pm_slab_init(void) {
    bool good = pm_range_tables_reserve(tables, 2, pm_range);
    pm_vslabs = (struct pm_vslab *)(void *)tables[0].table[0].map;
    pm_slab_bits = (void *)tables[1].table[0].map;
    return good;
}

static struct pm_slab_header *media(uint32_t slab) {
    struct pm_shard *s = pm_shard_of_slab(slab);
    return (struct pm_slab_header *)s->slabs.map + pm_slab_on_media(slab);
}

uint32_t pm_slab_header_crc(uint32_t slab, const struct pm_slab_header *h) {
    struct pm_slab_header whole = *h;
    uint32_t number = pm_slab_on_media(slab);
    whole.current = 0;
    return pm_crc32c(pm_crc32c(0, &number, sizeof number), &whole,
                     offsetof(struct pm_slab_header, crc));
}

void pm_slab_all_free(struct pm_vslab *v) {
    unsigned cls = v->size_class, blocks = pm_classes[cls].blocks;
    uint64_t *free = pm_free_bits(v);
    memset(free, 0xff, sizeof *free * pm_slab_words(cls));
    pm_bits_trim(free, blocks);
    v->free_count = (uint16_t)blocks;
}

static uint64_t current_word(uint32_t slab, unsigned cls, uint32_t line) {
    return pm_seal(cls << PM_CURRENT_SHIFT | line, PM_SALT_CURRENT(pm_slab_on_media(slab)));
}

void pm_slab_store_class(uint32_t slab, unsigned cls, uint32_t line, struct pm_gather *stored) {
    if (!pm_heap_on_media())
        return;
    uint64_t *current = &media(slab)->current;
    __atomic_store_n(current, current_word(slab, cls, line), __ATOMIC_RELEASE);
    pm_gather_add(stored, current, sizeof *current);
}

void pm_slab_commit_class(uint32_t slab, unsigned cls, uint32_t line) {
    struct pm_gather stored = {0};
    pm_slab_store_class(slab, cls, line, &stored);
    pm_gather_durable(&stored);
}

static void store_header(uint32_t slab, unsigned cls, struct pm_sort sort, uint32_t line) {
    struct pm_slab_header *h = media(slab);
    *h = (struct pm_slab_header){
        .magic = PM_SLAB_MAGIC, .size_class = (uint8_t)cls, .kind = sort.kind, .type = sort.type};
    h->crc = pm_slab_header_crc(slab, h);
    h->current = current_word(slab, cls, line);
}

static void write_header(uint32_t slab, unsigned cls, struct pm_sort sort, uint32_t line) {
    if (!pm_heap_on_media())
        return;
    store_header(slab, cls, sort, line);
    pm_make_durable(media(slab), sizeof *media(slab));
}

static void no_old_blocks(struct pm_vslab *v) {
    v->old_class = 0;
    v->media_line = 0;
    v->old_live = v->old_listed = v->blocked = 0;
}

// The program never writes the bytes of a block after those it asked for. Pointers that an earlier
// use left there would keep alive for good what they point to.
static void clear(uint32_t extent) {
    if (!pm_extents[extent].zero)
        pm_heap_scrub(pm_extent_address(&pm_extents[extent]), PM_SLAB_SIZE);
}

static void begin(uint32_t slab, uint32_t extent, unsigned cls, uint16_t arena, uint32_t line) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->next = v->prev = 0;
    v->listed = v->untagged = 0;
    v->holes = v->punched = pm_extents[extent].holes ? UINT16_MAX : 0;
    v->quiet = v->held = v->stripe = 0;
    v->kind = (uint8_t)pm_kind_of_arena(arena);
    v->type = 0;
    no_old_blocks(v);
    v->media_line = line;
    v->extent = extent;
    pm_slab_set_home(v, arena, cls);
    pm_slab_all_free(v);
}

// Of an extent that was taken, unless it is 0.
static uint32_t create(uint32_t extent, unsigned cls, uint16_t type, uint16_t arena) {
    if (!extent)
        return 0;
    uint32_t slab = (uint32_t)(pm_extents[extent].page / SLAB_PAGES);
    clear(extent);
    enum pm_kind kind = pm_kind_of_arena(arena);
    uint32_t line = 0;
    if (pm_kind_is_pinned(kind) && !pm_pinned_make(slab, cls, &line)) {
        pm_extent_untake(extent);
        return 0;
    }
    write_header(slab, cls, (struct pm_sort){(uint8_t)kind, type}, line);
    if (!pm_extent_publish(extent, true)) {
        pm_pinned_drop(slab, cls, line);
        return 0;
    }
    begin(slab, extent, cls, arena, line);
    pm_vslabs[slab].type = type;
    return slab + 1;
}

uint32_t pm_slab_create(unsigned cls, uint16_t arena, unsigned node) {
    return create(pm_extent_cache_take(node, SLAB_PAGES, SLAB_PAGES), cls, 0, arena);
}

uint32_t pm_slab_create_typed(unsigned cls, uint16_t type, uint16_t arena, unsigned node) {
    return create(pm_extent_cache_take(node, SLAB_PAGES, SLAB_PAGES), cls, type, arena);
}

uint32_t pm_slab_create_bare(unsigned cls, uint16_t arena, unsigned node) {
    if (pm_kind_is_pinned(pm_kind_of_arena(arena)) || pm_heap_is_journaled() ||
        !pm_extent_may_punch())
        return pm_slab_create(cls, arena, node);
    return create(pm_extent_cache_take_bare(node, SLAB_PAGES, SLAB_PAGES), cls, 0, arena);
}

unsigned pm_slab_create_group(const uint8_t *cls, unsigned count, uint16_t arena, unsigned node,
                              uint32_t *slab) {
    static const uint16_t pages[PM_GROUP_MAX] = {[0 ... PM_GROUP_MAX - 1] = SLAB_PAGES};
    uint32_t extent[PM_GROUP_MAX];
    struct pm_gather headers = {0};
    extent[0] = pm_extent_cache_take(node, SLAB_PAGES, SLAB_PAGES);
    if (!extent[0])
        return 0;
    count = 1 + pm_extent_take_more(extent[0], pages, count - 1, SLAB_PAGES, extent + 1);
    for (unsigned i = 0; i < count; i++) {
        slab[i] = pm_extent_slab(&pm_extents[extent[i]]);
        clear(extent[i]);
        store_header(slab[i], cls[i], (struct pm_sort){0}, 0);
        pm_gather_add(&headers, media(slab[i]), sizeof *media(slab[i]));
    }
    pm_gather_durable(&headers);
    count = pm_extent_publish_group(extent, count, true);
    for (unsigned i = 0; i < count; i++)
        begin(slab[i], extent[i], cls[i], arena, 0);
    return count;
}

// After the end of the entry: the lines serve other tables then. As soon as the extent is free, the
// vslab may be another slab's, so its line is a parameter.
static void drop_table(uint32_t slab, unsigned cls, unsigned kind, uint32_t line) {
    if (pm_kind_is_pinned(kind) && pm_heap_on_media())
        pm_pinned_drop(slab, cls, line);
}

void pm_slab_leave(uint32_t slab, uint32_t *chain) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t extent = v->extent;
    pm_slab_set_home(v, 0, 0);
    pm_extents[extent].next = *chain;
    *chain = extent;
}

void pm_slab_destroy(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class, kind = v->kind;
    uint32_t line = v->media_line;
    pm_slab_set_home(v, 0, 0);
    pm_extent_release(v->extent);
    drop_table(slab, cls, kind, line);
}

// No table is made before recovery has ended the entries.
void pm_slab_forget(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class;
    pm_slab_set_home(v, 0, 0);
    pm_extent_forget(v->extent);
    drop_table(slab, cls, v->kind, v->media_line);
}

// Takes all 64 blocks of a word, which are neighbours.
static void pop_word(void **blocks, char *first, size_t size) {
    for (unsigned i = 0; i < 64; i++)
        blocks[i] = first + i * size;
}

unsigned pm_slab_pop(uint32_t slab, void **blocks, unsigned want) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t *free = pm_free_bits(v);
    size_t size = pm_classes[v->size_class].size;
    char *first = pm_slab_start(slab); // of the word
    unsigned got = 0;
    for (unsigned word = 0; got < want && got < v->free_count; word++, first += 64 * size) {
        uint64_t set = free[word];
        if (set == UINT64_MAX && want - got >= 64) {
            pop_word(blocks + got, first, size);
            got += 64;
            set = 0;
        }
        for (; set && got < want; set &= set - 1)
            blocks[got++] = first + (unsigned)__builtin_ctzll(set) * size;
        free[word] = set;
    }
    v->free_count = (uint16_t)(v->free_count - got);
    v->quiet = 0;
    return got;
}

// Neighbours in `blocks` are often neighbours in the slab, so the bits of one word are collected
// before they are stored.
unsigned pm_slab_push_run(uint32_t slab, void *const *blocks, unsigned count) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t *free = pm_free_bits(v);
    const uint64_t reciprocal = pm_classes[v->size_class].reciprocal;
    const uintptr_t start = (uintptr_t)pm_slab_start(slab);
    uint64_t set = 0;
    unsigned word = 0, i = 0;
    for (; i < count; i++) {
        uint64_t offset = (uintptr_t)blocks[i] - start;
        if (offset >= PM_SLAB_SIZE)
            break;
        unsigned index = (unsigned)(offset * reciprocal >> 32);
        if (word != index / 64) {
            free[word] |= set;
            word = index / 64;
            set = 0;
        }
        set |= 1ull << index % 64;
    }
    free[word] |= set;
    v->free_count = (uint16_t)(v->free_count + i);
    v->quiet = 0;
    return i;
}

// Returns the current class that a header names. 0: `current` is not a word that PMAlloc wrote.
static unsigned current_class(uint32_t slab, const struct pm_slab_header *h, uint32_t *line) {
    uint32_t value = pm_unseal(h->current);
    *line = 0;
    if (!pm_sealed(h->current, PM_SALT_CURRENT(pm_slab_on_media(slab))))
        return 0;
    *line = value & ((1u << PM_CURRENT_SHIFT) - 1);
    return value >> PM_CURRENT_SHIFT;
}

unsigned pm_slab_media_class(uint32_t slab, uint32_t *line) {
    const struct pm_slab_header *h = media(slab);
    uint32_t at;
    unsigned cls = h->crc == pm_slab_header_crc(slab, h) ? current_class(slab, h, &at) : 0;
    if (line)
        *line = cls ? at : 0;
    return cls;
}

int pm_slab_adopt(uint32_t slab, uint32_t extent, struct pm_error *err) {
    const struct pm_shard *s = pm_shard_of_slab(slab);
    if ((pm_slab_on_media(slab) + 1ull) * sizeof(struct pm_slab_header) > s->slabs.size)
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s has %zu bytes, too few for slab %u; was it truncated?", pm_heap.dir,
                       s->slabs.name, s->slabs.size, slab);
    const struct pm_slab_header *h = media(slab);
    __builtin_prefetch(h + 8);
    pm_slab_prefetch(slab);
    uint32_t line;
    unsigned cls = current_class(slab, h, &line);
    if (h->magic != PM_SLAB_MAGIC || h->crc != pm_slab_header_crc(slab, h) || !cls)
        return pm_fail(err, PM_DAMAGE, "%s/%s: the header of slab %u is damaged", pm_heap.dir,
                       s->slabs.name, slab);
    if (h->size_class == 0 || h->size_class > PM_CLASSES || h->data_offset || cls > PM_CLASSES)
        return pm_fail(err, PM_DAMAGE, "%s/%s: slab %u has class %u, which this heap cannot have",
                       pm_heap.dir, s->slabs.name, slab, cls > PM_CLASSES ? cls : h->size_class);
    if (!pm_kind_is_known(h->kind))
        return pm_fail(err, PM_DAMAGE, "%s/%s: slab %u is of kind %u, which this heap cannot have",
                       pm_heap.dir, s->slabs.name, slab, h->kind);
    if (pm_kind_is_typed(h->kind) != (h->type != 0))
        return pm_fail(err, PM_DAMAGE, "%s/%s: slab %u is of type %u, but of kind %u", pm_heap.dir,
                       s->slabs.name, slab, h->type, h->kind);
    struct pm_vslab *v = &pm_vslabs[slab];
    v->kind = h->kind;
    v->type = h->type;
    v->held = v->stripe = 0;
    v->extent = extent;
    pm_slab_set_home(v, 0, cls);
    no_old_blocks(v);
    v->holes = v->punched = 0;
    v->media_line = line;
    v->free_count = 0; // the bits are as the table was made: 0
    return PM_OK;
}

void pm_slab_flush_inherited(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        pm_flush(s->slabs.map, s->slabs.size);
        pm_flush(s->morph.map, s->morph.size);
    }
}

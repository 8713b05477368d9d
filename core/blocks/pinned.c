// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pinned.h"

#include "base/bits.h"
#include "media/log/lanes.h"
#include "media/persist.h"
#include "media/pinned.h"
#include "pinned_table.h"

static uint64_t shard_bits(uint32_t slab) {
    return (uint64_t)pm_shard_number(pm_shard_of_slab(slab)) << PM_PIN_SHARD_SHIFT;
}

static uint64_t large_place(uint32_t slab) {
    uint64_t header = (uint64_t)pm_slab_on_media(slab) * sizeof(struct pm_slab_header);
    return PM_PIN_IN_SLABS | shard_bits(slab) | (header + offsetof(struct pm_slab_header, current));
}

static struct pm_slab_header *header_at(uint32_t slab) {
    struct pm_slab_header *first = (void *)pm_shard_of_slab(slab)->slabs.map;
    return first + pm_slab_on_media(slab);
}

// ---- large --------------------------------------------------------------------------------------

void pm_pinned_make_large(const struct pm_extent *e) {
    uint32_t slab = pm_extent_slab(e);
    if (!pm_heap_on_media())
        return;
    struct pm_slab_header *h = header_at(slab);
    uint16_t type = pm_kind_is_typed(e->kind) ? e->type : 0;
    *h = (struct pm_slab_header){.magic = PM_PINNED_MAGIC, .kind = e->kind, .type = type};
    h->crc = pm_slab_header_crc(slab, h);
    pm_pin_write(large_place(slab), 0);
    pm_make_durable(h, sizeof *h);
}

int pm_pinned_adopt_large(struct pm_extent *e, struct pm_error *err) {
    uint32_t slab = pm_extent_slab(e);
    const struct pm_shard *s = pm_shard_of_slab(slab);
    bool good = e->page % (PM_SLAB_SIZE / PM_PAGE_SIZE) == 0 && pm_pin_word(large_place(slab));
    if (good) {
        const struct pm_slab_header *h = header_at(slab);
        bool sealed;
        uint32_t used = pm_pin_read(large_place(slab), &sealed);
        good = h->magic == PM_PINNED_MAGIC && h->kind == e->kind && sealed &&
               used <= pm_kind_is_pinned(e->kind) && pm_kind_is_typed(e->kind) == (h->type != 0) &&
               h->crc == pm_slab_header_crc(slab, h);
        e->type = h->type;
    }
    if (good)
        return PM_OK;
    return pm_fail(err, PM_DAMAGE, "%s/%s: the header of the large block at page %lu is damaged",
                   pm_heap.dir, s->slabs.name, (unsigned long)e->page);
}

bool pm_pinned_large_is_used(const struct pm_extent *e) {
    bool good;
    uint64_t place = large_place(pm_extent_slab(e));
    return pm_lanes_pinned(place, pm_pin_read(place, &good)) != 0;
}

// ---- allocating and freeing ---------------------------------------------------------------------

struct pm_pin pm_pin_of(const void *p) {
    uint32_t slab = pm_slab_of(p);
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = pm_home_class(pm_slab_home(v));
    if (!cls)
        return (struct pm_pin){large_place(slab), 1};
    uint32_t offset = (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1));
    unsigned block = pm_block_index(cls, offset);
    uint64_t place = pm_pinned_place(slab, cls, v->media_line, block);
    return (struct pm_pin){place, pm_pinned_mask(block)};
}

static void change(const void *p, bool set) {
    if (!pm_heap_on_media())
        return;
    struct pm_pin pin = pm_pin_of(p);
    if (pm_pin_change(pin.place, set ? PM_PIN_SET(pin.mask) : PM_PIN_CLEAR(pin.mask)))
        pm_drain();
}

void pm_pin(const void *p) { change(p, true); }

void pm_unpin(const void *p) { change(p, false); }

// The numbers in word w of a set that belong to a stripe.
static uint64_t stripe_bits(unsigned stripe, unsigned w) {
    enum { N = PM_PINNED_STRIPES };
    // Every N-th bit, from bit 0 on.
    const uint64_t every =
        (uint64_t)((((unsigned __int128)1 << (63 + N) / N * N) - 1) / ((1u << N) - 1));
    // The words before this one have 64 w bits.
    return every << (stripe + w * (N - 64 % N)) % N;
}

// The first free block of a stripe; the number of blocks: there is none.
static unsigned first_of(const struct pm_vslab *v, unsigned stripe) {
    for (unsigned w = 0; w < pm_slab_words(v->size_class); w++) {
        uint64_t bits = pm_free_bits(v)[w] & stripe_bits(stripe, w);
        if (bits)
            return w * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return pm_classes[v->size_class].blocks;
}

unsigned pm_pinned_pop(uint32_t slab, void **blocks, unsigned want) {
    struct pm_vslab *v = &pm_vslabs[slab];
    const struct pm_class *cls = &pm_classes[v->size_class];
    unsigned got = 0;
    while (got < want && v->free_count) {
        unsigned block = first_of(v, v->stripe);
        v->stripe = (uint8_t)((v->stripe + 1u) % PM_PINNED_STRIPES);
        if (block == cls->blocks)
            continue;
        pm_bit_clear(pm_free_bits(v), block);
        v->free_count--;
        blocks[got++] = pm_slab_start(slab) + (size_t)block * cls->size;
    }
    v->quiet = 0;
    return got;
}

// ---- recovery -----------------------------------------------------------------------------------

int pm_pinned_adopt(uint32_t slab, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    return pm_pinned_check(slab, v->size_class, v->media_line, err);
}

void pm_pinned_used(uint32_t slab, uint64_t used[PM_BITMAP_WORDS]) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    pm_pinned_bits(slab, v->size_class, v->media_line, used);
}

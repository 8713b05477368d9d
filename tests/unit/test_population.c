// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The populations of a slab before, during and after a morph. Their counts are right, and no byte
// belongs to two blocks.
#include "blocks/population.h"

#include "base/bits.h"
#include "morph_fixture.h"

static void *blocks[PM_SLAB_BLOCKS_MAX];

// Makes a slab of class `cls`. blocks[0 .. keep) are handed out, the rest is free.
static uint32_t slab_with(unsigned cls, unsigned keep) {
    uint32_t slab = pm_slab_create(cls, 0, 0) - 1;
    unsigned all = pm_slab_pop(slab, blocks, PM_SLAB_BLOCKS_MAX);
    for (unsigned i = 0; i < keep; i++) {
        unsigned j = i + (unsigned)rnd(all - i);
        void *t = blocks[i];
        blocks[i] = blocks[j], blocks[j] = t;
    }
    for (unsigned i = keep; i < all; i++)
        pm_slab_push(slab, blocks[i]);
    return slab;
}

// Returns how many populations the slab has, and checks their counts against their bits. In `owner`
// each byte of a block in use gets the number of its population, from 1 on.
static unsigned examine(uint32_t slab, struct pm_population out[2], uint8_t *owner) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned count = pm_slab_populations(v, out), outside = 0, shared = 0;
    memset(owner, 0, PM_SLAB_SIZE);
    for (unsigned n = 0; n < count; n++) {
        uint64_t used[PM_BITMAP_WORDS];
        unsigned size = pm_classes[out[n].cls].size;
        pm_population_used(v, &out[n], used);
        CHECK_EQ(pm_bits_count(used, pm_slab_words(out[n].cls)), out[n].used);
        CHECK_EQ(out[n].old, n == 1);
        PM_EACH_BIT(i, used, pm_slab_words(out[n].cls)) {
            outside += i >= pm_classes[out[n].cls].blocks;
            for (unsigned b = i * size; b < (i + 1) * size && b < PM_SLAB_SIZE; b++) {
                shared += owner[b] != 0;
                owner[b] = (uint8_t)(n + 1);
            }
        }
    }
    CHECK(outside == 0 && shared == 0);
    return count;
}

static void test_before_in_and_after(void) {
    static uint8_t owner[PM_SLAB_SIZE];
    struct pm_population p[2];
    start();
    uint32_t none = (uint32_t)PM_SLABS - 1;
    CHECK_EQ(pm_slab_populations(&pm_vslabs[none], p), 0);
    // The bits of some of these pairs fit beside each other in the vslab; those of others do not.
    static const unsigned from_to[][2] = {{9, 14}, {14, 9}, {1, 3}, {20, 17}, {36, 2}};
    for (unsigned k = 0; k < sizeof from_to / sizeof from_to[0]; k++) {
        unsigned from = from_to[k][0], to = from_to[k][1], keep = 2;
        uint32_t slab = slab_with(from, keep);
        CHECK_EQ(examine(slab, p, owner), 1);
        CHECK(p[0].cls == from && p[0].used == keep && p[0].blocks == pm_classes[from].blocks);
        MUST(pm_morph(slab, 0, to));
        CHECK_EQ(examine(slab, p, owner), 2);
        CHECK(p[0].cls == to && p[0].used == 0 && p[1].cls == from && p[1].used == keep);
        CHECK(p[0].blocks == pm_vslabs[slab].free_count && p[1].blocks == keep);
        void *fresh[3];
        CHECK_EQ(pm_slab_pop(slab, fresh, 3), 3);
        CHECK_EQ(examine(slab, p, owner), 2);
        CHECK(p[0].used == 3 && p[1].used == keep);
        pm_morph_free(slab, blocks[0]);
        CHECK_EQ(examine(slab, p, owner), 2);
        CHECK(p[0].used == 3 && p[1].used == keep - 1);
        pm_morph_free(slab, blocks[1]);
        pm_morph_sync(slab);
        CHECK_EQ(examine(slab, p, owner), 1);
        CHECK(p[0].cls == to && p[0].used == 3 && p[0].blocks == pm_classes[to].blocks);
    }
}

// Blocks are marked in the bits of each population. After the sweep exactly these are in use and
// tagged.
static void test_swept(void) {
    static uint8_t owner[PM_SLAB_SIZE];
    struct pm_population p[2];
    start();
    uint32_t slab = slab_with(9, 20);
    void *fresh[4];
    MUST(pm_morph(slab, 0, 14) && pm_slab_pop(slab, fresh, 4) == 4);
    MUST(pm_slab_populations(&pm_vslabs[slab], p) == 2);
    for (unsigned n = 0; n < 2; n++)
        memset(p[n].bits, 0, pm_slab_words(p[n].cls) * sizeof(uint64_t));
    struct pm_slab_block b;
    void *const marked[] = {blocks[3], blocks[7], fresh[2]};
    for (unsigned i = 0; i < 3; i++) {
        uint32_t offset = (uint32_t)((char *)marked[i] - pm_slab_start(slab));
        MUST(pm_slab_find(&pm_vslabs[slab], offset, &b) && b.old == (i < 2));
        pm_bit_set(b.bits, b.index);
    }
    pm_slab_swept(&pm_vslabs[slab]);
    CHECK_EQ(examine(slab, p, owner), 2);
    CHECK(p[0].used == 1 && p[1].used == 2);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(owner[(char *)marked[i] - pm_slab_start(slab)], i < 2 ? 2 : 1);
    pm_vslabs[slab].untagged = 1;
    pm_slab_write_tags(slab);
    unsigned tags = 0;
    for (unsigned g = 0; g < PM_SLAB_SIZE / 16; g++)
        tags += *pm_tag_at(pm_slab_start(slab) + g * 16) != PM_TAG_NONE;
    CHECK(tags == 3 && !pm_vslabs[slab].untagged);
    CHECK(*pm_tag_at(blocks[3]) == 9 && *pm_tag_at(fresh[2]) == 14);
}

int main(void) {
    RUN_CHILD(before_in_and_after);
    RUN_CHILD(swept);
    return CHECK_DONE();
}

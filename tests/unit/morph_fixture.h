// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// For tests of slab morphing: a heap with sparse slabs.
#ifndef PMALLOC_TESTS_UNIT_MORPH_FIXTURE_H
#define PMALLOC_TESTS_UNIT_MORPH_FIXTURE_H

#include "blocks/morph.h"
#include "blocks/morph_media.h"
#include "blocks/verify.h"
#include "heap_fixture.h"

static const unsigned PERCENT = 40;

static inline void start(void) {
    pm_options_default();
    pm_options.morph.number = PERCENT;
    fixture_new_heap();
}

static inline void good(void) {
    struct pm_error err = {0};
    CHECK_EQ(pm_verify(true, &err), PM_OK);
    CHECK_STR(err.text, "");
}

static inline struct pm_slab_header *media(uint32_t slab) {
    return (struct pm_slab_header *)(void *)pm_heap.shard[0].slabs.map + slab;
}

static inline unsigned take(unsigned cls, void **to, unsigned want) {
    unsigned got = 0, n;
    while (got < want && (n = pm_arena_fill(&pm_arenas[0], cls, to + got, want - got)) > 0)
        got += n;
    return got;
}

// Makes slabs of class `cls`. In each `keep` blocks stay in use; kept[] holds them, slab by slab.
static void *kept[64][PM_SLAB_BLOCKS_MAX];
static inline void sparse_slabs(unsigned cls, unsigned slabs, unsigned keep) {
    unsigned per = pm_classes[cls].blocks;
    for (unsigned s = 0; s < slabs; s++)
        MUST(take(cls, kept[s], per) == per);
    for (unsigned s = 0; s < slabs; s++)
        pm_arena_return(cls, kept[s] + keep, per - keep);
}

#endif

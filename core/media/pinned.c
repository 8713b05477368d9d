// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pinned.h"

#include "base/crc.h"
#include "heap.h"
#include "persist.h"

static uint64_t offset_of(uint64_t place) { return place & ((1ull << PM_PIN_SHARD_SHIFT) - 1); }

static uint32_t salt_of(uint64_t place) {
    uint64_t offset = offset_of(place);
    return place & PM_PIN_IN_SLABS
               ? PM_SALT_CURRENT((uint32_t)(offset / sizeof(struct pm_slab_header)))
               : PM_SALT_PINNED((uint32_t)(offset / sizeof(uint64_t)));
}

uint64_t *pm_pin_word(uint64_t place) {
    uint64_t shard = (place & ~PM_PIN_IN_SLABS) >> PM_PIN_SHARD_SHIFT, offset = offset_of(place);
    if (shard >= pm_heap.shards || offset % sizeof(uint64_t))
        return NULL;
    const struct pm_shard *s = &pm_heap.shard[shard];
    bool slabs = place & PM_PIN_IN_SLABS;
    const struct pm_file *file = slabs ? &s->slabs : &s->morph;
    bool current =
        offset % sizeof(struct pm_slab_header) == offsetof(struct pm_slab_header, current);
    if (offset + sizeof(uint64_t) > file->size || !file->map || (slabs && !current))
        return NULL;
    return (uint64_t *)(void *)(file->map + offset);
}

uint32_t pm_pin_read(uint64_t place, bool *good) {
    uint64_t word = __atomic_load_n(pm_pin_word(place), __ATOMIC_ACQUIRE);
    *good = pm_sealed(word, salt_of(place));
    return pm_unseal(word);
}

void pm_pin_write(uint64_t place, uint32_t bits) {
    __atomic_store_n(pm_pin_word(place), pm_seal(bits, salt_of(place)), __ATOMIC_RELEASE);
}

bool pm_pin_change(uint64_t place, uint64_t change) {
    uint64_t *at = pm_pin_word(place);
    bool changed = pm_pin_change_at(at, salt_of(place), change);
    if (changed)
        pm_flush(at, sizeof *at);
    return changed;
}

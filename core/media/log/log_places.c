// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "log_places.h"

#include "log_chunks.h"
#include "media/persist.h"

#define CHUNKS_MIN 4u // that join the log at once: a page of them
#define CHUNKS_MAX 16u

void pm_place_add(struct pm_shard *s, uint32_t id, unsigned slot) {
    s->chunks.v[id].erased[slot / 64] |= 1ull << slot % 64;
    s->chunks.places++;
}

pm_log_pos pm_place_take(struct pm_shard *s) {
    for (;; s->chunks.place_at++) {
        if (s->chunks.place_at >= s->chunks.count)
            s->chunks.place_at = 0;
        uint64_t *erased = s->chunks.v[s->chunks.place_at].erased;
        unsigned half = erased[0] ? 0 : 1;
        if (!erased[half])
            continue;
        unsigned bit = (unsigned)__builtin_ctzll(erased[half]);
        erased[half] &= erased[half] - 1;
        s->chunks.places--;
        return s->chunks.place_at << PM_POS_SHIFT | (half * 64 + bit);
    }
}

void pm_places_drop(struct pm_shard *s, uint32_t id) {
    uint64_t *erased = s->chunks.v[id].erased;
    s->chunks.places -= (uint64_t)(__builtin_popcountll(erased[0]) + //
                                   __builtin_popcountll(erased[1]));
    erased[0] = erased[1] = 0;
}

void pm_places_fill(struct pm_shard *s, uint32_t id) {
    struct pm_vchunk *v = &s->chunks.v[id];
    while (v->used < PM_CHUNK_ENTRIES) {
        unsigned slot = pm_entry_slot(v->used++);
        pm_chunk_at(s, id)->entry[slot] = pm_entry_seal(s, id, slot, PM_ENTRY_ERASED);
        pm_place_add(s, id, slot);
    }
}

// The erased entries and the generations are durable before the epochs. An epoch needs no flush of
// its own: the flush of the chunk's first entry covers the chunk's head, too.
bool pm_places_more(struct pm_shard *s) {
    uint32_t ids[CHUNKS_MAX], count = 0, want = s->chunks.active / 2;
    struct pm_gather fresh = {0};
    want = want < CHUNKS_MIN ? CHUNKS_MIN : want > CHUNKS_MAX ? CHUNKS_MAX : want;
    while (count < want && (ids[count] = pm_chunk_fresh(s)) != PM_NO_CHUNK) {
        uint32_t id = ids[count++];
        pm_places_fill(s, id);
        pm_gather_add(&fresh, pm_chunk_at(s, id), PM_CHUNK_SIZE);
    }
    if (!count)
        return false;
    pm_gather_durable(&fresh);
    pm_chunks_count(s);
    for (uint32_t i = 0; i < count; i++)
        pm_chunk_enter(s, ids[i]);
    return true;
}

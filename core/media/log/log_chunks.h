// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The chunks of the bookkeeping log: their layout on media, and the volatile side of each. All
// functions are called with the extent lock held.
#ifndef PM_LOG_CHUNKS_H
#define PM_LOG_CHUNKS_H

#include "base/crc.h"
#include "log_entry.h"
#include "media/shard.h"

#define PM_POS_SHIFT 7
#define PM_NO_CHUNK UINT32_MAX
#define PM_EPOCH_MAX (UINT32_MAX - 1)
#define PM_ENTRY_ERASED (PM_ENTRY_PAGES_MAX << 38 | PM_ENTRY_NONE)
#define PM_CHECK_MASK (0xffull << PM_ENTRY_CHECK_SHIFT)

// The volatile side of a chunk.
struct pm_vchunk {
    uint64_t live[2];   // bit i: entry i stands
    uint64_t erased[2]; // bit i: it is a place that another may take (log_places.h)
    uint16_t used;      // entries appended, in interleaved order
    uint16_t pins;      // tombstones here that end an entry of another chunk of the log
    bool active;        // in the log
    uint32_t next_free;
    uint32_t ended_by[PM_CHUNK_ENTRIES]; // chunk + 1 of the tombstone that ended entry i
};

static inline struct pm_log_header *pm_log_head(const struct pm_shard *s) {
    return (struct pm_log_header *)s->log.map;
}

static inline struct pm_log_chunk *pm_chunk_at(const struct pm_shard *s, uint32_t id) {
    return (struct pm_log_chunk *)(s->log.map + sizeof(struct pm_log_header)) + id;
}

static inline uint32_t pm_chunk_generation(const struct pm_shard *s, uint32_t id) {
    return pm_unseal(pm_chunk_at(s, id)->generation);
}
static inline uint64_t pm_chunk_free_epoch(uint32_t id) {
    return pm_seal(0, PM_SALT_CHUNK_EPOCH(id));
}

// The word on media for `entry` at this place: the entry with its check bits.
static inline uint64_t pm_entry_seal(const struct pm_shard *s, uint32_t id, unsigned slot,
                                     uint64_t entry) {
    uint64_t where = (uint64_t)pm_chunk_generation(s, id) << 32 | id << PM_POS_SHIFT | slot;
    return entry | (uint64_t)pm_crc8(pm_crc8(0, where), entry) << PM_ENTRY_CHECK_SHIFT;
}

static inline uint64_t pm_entry_at(const struct pm_shard *s, uint32_t id, unsigned slot) {
    return pm_chunk_at(s, id)->entry[slot] & ~PM_CHECK_MASK;
}

// Interleaved appending: the k-th entry of a chunk goes to cache line k % 16. Line 0 has room for
// six entries beside the chunk's header, the others for eight, so the last rounds pass over line 0.
static inline unsigned pm_entry_slot(unsigned k) {
#ifdef PM_LOG_IN_ORDER // a study build (scripts/study.mk)
    return k;
#endif
    const unsigned lines = 16, short_rounds = 6 * lines;
    if (k < short_rounds) {
        unsigned line = k % lines, row = k / lines;
        return line == 0 ? row : 6 + (line - 1) * 8 + row;
    }
    k -= short_rounds;
    return 6 + k % (lines - 1) * 8 + 6 + k / (lines - 1);
}

static inline bool pm_entry_live(const struct pm_vchunk *v, unsigned slot) {
    return v->live[slot / 64] >> slot % 64 & 1;
}

static inline void pm_chunk_push_free(struct pm_shard *s, uint32_t id) {
    s->chunks.v[id].next_free = s->chunks.free_head;
    s->chunks.free_head = id;
}

// Makes the volatile side of the first `in_use` chunks; none of them is in the log yet. False:
// memory is out.
bool pm_chunks_begin(struct pm_shard *s, uint32_t in_use);
// A chunk that is not in the log, with all entries zero. PM_NO_CHUNK when the file cannot grow.
uint32_t pm_chunk_fresh(struct pm_shard *s);
// Makes a chunk a part of the log. All else of it must be durable already. The epoch becomes so
// with the chunk's first entry. Until then nothing depends on the chunk.
void pm_chunk_enter(struct pm_shard *s, uint32_t id);
// Makes the header count every chunk, durable with the next drain. The chunks must be durable
// already, as free ones.
void pm_chunks_count(struct pm_shard *s);

#endif

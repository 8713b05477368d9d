// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "log_chunks.h"

#include <string.h>

#include "base/lazy_table.h"
#include "media/backing/file_space.h"
#include "media/persist.h"

bool pm_chunks_begin(struct pm_shard *s, uint32_t in_use) {
    size_t reach = (s->log.reach / PM_CHUNK_SIZE) * sizeof *s->chunks.v;
    if (!s->chunks.v && !pm_lazy_table_reserve(&s->chunks.table, reach))
        return false;
    s->chunks.v = (struct pm_vchunk *)s->chunks.table.map;
    if (!pm_lazy_table_need(&s->chunks.table, in_use * sizeof *s->chunks.v))
        return false;
    s->chunks.count = in_use;
    s->chunks.active = 0;
    s->chunks.live = s->chunks.places = 0;
    s->chunks.place_at = 0;
    s->chunks.current = s->chunks.free_head = PM_NO_CHUNK;
    for (uint32_t id = 0; id < s->chunks.count; id++)
        s->chunks.v[id] = (struct pm_vchunk){0};
    return true;
}

uint32_t pm_chunk_fresh(struct pm_shard *s) {
    uint32_t id = s->chunks.free_head;
    if (id != PM_NO_CHUNK) {
        s->chunks.free_head = s->chunks.v[id].next_free;
    } else {
        size_t size = sizeof(struct pm_log_header) + (size_t)(s->chunks.count + 1) * PM_CHUNK_SIZE;
        if (!pm_lazy_table_need(&s->chunks.table, (s->chunks.count + 1) * sizeof *s->chunks.v) ||
            !pm_file_grow(&s->log, size))
            return PM_NO_CHUNK;
        id = s->chunks.count++;
    }
    struct pm_log_chunk *c = pm_chunk_at(s, id);
    memset(c->entry, 0, sizeof c->entry);
    __atomic_store_n(&c->epoch, pm_chunk_free_epoch(id), __ATOMIC_RELAXED);
    __atomic_store_n(&c->generation,
                     pm_seal(pm_chunk_generation(s, id) + 1, PM_SALT_CHUNK_GENERATION(id)),
                     __ATOMIC_RELAXED);
    s->chunks.v[id] = (struct pm_vchunk){0};
    return id;
}

void pm_chunk_enter(struct pm_shard *s, uint32_t id) {
    uint32_t epoch = pm_unseal(pm_log_head(s)->epoch);
    __atomic_store_n(&pm_chunk_at(s, id)->epoch, pm_seal(epoch, PM_SALT_CHUNK_EPOCH(id)),
                     __ATOMIC_RELEASE);
    s->chunks.v[id].active = true;
    s->chunks.active++;
}

void pm_chunks_count(struct pm_shard *s) {
    if (pm_unseal(pm_log_head(s)->chunks) == s->chunks.count)
        return;
    __atomic_store_n(&pm_log_head(s)->chunks, pm_seal(s->chunks.count, PM_SALT_LOG_CHUNKS),
                     __ATOMIC_RELEASE);
    pm_flush(&pm_log_head(s)->chunks, sizeof pm_log_head(s)->chunks);
}

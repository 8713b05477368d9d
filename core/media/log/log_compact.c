// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "log_compact.h"

#include "log_chunks.h"
#include "log_places.h"
#include "media/persist.h"

static bool is_dead(struct pm_shard *s, uint32_t id) {
    const struct pm_vchunk *v = &s->chunks.v[id];
    return v->active && id != s->chunks.current && !v->live[0] && !v->live[1] && !v->pins;
}

static void drop_chunk(struct pm_shard *s, uint32_t id) {
    pm_commit_u64(&pm_chunk_at(s, id)->epoch, pm_chunk_free_epoch(id));
    pm_places_drop(s, id);
    s->chunks.v[id].active = false;
    s->chunks.active--;
    // The tombstones of its entries are not needed any more. That may let their chunks go in turn.
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        uint32_t by = s->chunks.v[id].ended_by[slot];
        if (by && by - 1 != id)
            s->chunks.v[by - 1].pins--;
    }
    pm_chunk_push_free(s, id);
}

// Dropping a chunk unpins the chunks that have its tombstones. These are mostly later chunks, so
// one pass upwards drops most of them, too.
void pm_log_drop_dead_chunks(struct pm_shard *s) {
    s->chunks.chunk_drops++;
    for (uint32_t id = 0; id < s->chunks.count; id++)
        if (is_dead(s, id))
            drop_chunk(s, id);
}

// The volatile side of a chunk that is not in the log any more.
static void retire_chunk(struct pm_shard *s, uint32_t id) {
    s->chunks.v[id].active = false;
    s->chunks.v[id].live[0] = s->chunks.v[id].live[1] = 0;
    pm_places_drop(s, id);
    pm_chunk_push_free(s, id);
}

// Appends the entries of `from` that stand to the chunk *to. When that chunk is full, *to becomes a
// new one, which joins `list`. False when there is no room.
static bool copy_live(struct pm_shard *s, uint32_t from, uint32_t *to, uint32_t *list) {
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        if (!pm_entry_live(&s->chunks.v[from], slot))
            continue;
        if (*to == PM_NO_CHUNK || s->chunks.v[*to].used == PM_CHUNK_ENTRIES) {
            uint32_t id = pm_chunk_fresh(s);
            if (id == PM_NO_CHUNK)
                return false;
            s->chunks.v[id].next_free = *list;
            *list = *to = id;
        }
        struct pm_vchunk *v = &s->chunks.v[*to];
        unsigned at = pm_entry_slot(v->used++);
        pm_chunk_at(s, *to)->entry[at] = pm_entry_seal(s, *to, at, pm_entry_at(s, from, slot));
        v->live[at / 64] |= 1ull << at % 64;
    }
    return true;
}

// The span from the list's lowest chunk to its highest, with whatever lies between them, so that
// one flush serves all: on a plain file each flush waits for the disk. If the list is empty, a
// piece of the header.
static size_t span_of(struct pm_shard *s, uint32_t list, void **from) {
    uint32_t low = list, high = list;
    for (uint32_t id = list; id != PM_NO_CHUNK; id = s->chunks.v[id].next_free) {
        low = id < low ? id : low;
        high = id > high ? id : high;
    }
    *from = list == PM_NO_CHUNK ? (void *)pm_log_head(s) : pm_chunk_at(s, low);
    return (size_t)(high - low + 1) * PM_CHUNK_SIZE;
}

// The list is in force on media. The volatile side follows.
static void become(struct pm_shard *s, uint32_t list, pm_log_moved_fn *moved) {
    for (uint32_t id = 0; id < s->chunks.count; id++)
        if (s->chunks.v[id].active)
            retire_chunk(s, id);
    s->chunks.active = 0;
    for (uint32_t id = list, after; id != PM_NO_CHUNK; id = after) {
        after = s->chunks.v[id].next_free;
        s->chunks.v[id].active = true;
        s->chunks.active++;
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++)
            if (pm_entry_live(&s->chunks.v[id], slot))
                moved(s, pm_entry_at(s, id, slot), id << PM_POS_SHIFT | slot);
    }
}

// Copies what stands into new chunks of the next epoch, then switches the header to that epoch:
//
//   1  entries of the new chunks             durable
//   2  header.chunks, epoch e + 1 of them    durable     a cut up to here leaves the old list
//   3  header.epoch = e + 1                  the commit: the new list is in force
//
// The old chunks need no store: their epoch has passed.
void pm_log_compact(struct pm_shard *s, pm_log_moved_fn *moved) {
    uint32_t next = pm_unseal(pm_log_head(s)->epoch) + 1;
    uint32_t to = PM_NO_CHUNK, list = PM_NO_CHUNK, old_chunks = s->chunks.count;
    bool whole = true;
    for (uint32_t id = 0; id < old_chunks && whole; id++)
        if (s->chunks.v[id].active)
            whole = copy_live(s, id, &to, &list);
    if (to != PM_NO_CHUNK && pm_persist_waits())
        pm_places_fill(s, to);
    void *from;
    size_t length = span_of(s, list, &from);
    pm_make_durable(from, length);
    pm_chunks_count(s);
    if (!whole || next > PM_EPOCH_MAX) { // no room: keep the old list
        while (list != PM_NO_CHUNK) {
            uint32_t id = list;
            list = s->chunks.v[id].next_free;
            retire_chunk(s, id);
        }
        return;
    }
    s->chunks.compactions++;
    for (uint32_t id = list; id != PM_NO_CHUNK; id = s->chunks.v[id].next_free)
        pm_chunk_at(s, id)->epoch = pm_seal(next, PM_SALT_CHUNK_EPOCH(id));
    pm_make_durable(from, length);
    pm_commit_u64(&pm_log_head(s)->epoch, pm_seal(next, PM_SALT_LOG_EPOCH));
    become(s, list, moved);
    s->chunks.current = to;
}

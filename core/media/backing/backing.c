// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backing.h"

#include "base/os.h"
#include "emptied.h"
#include "file.h"
#include "fixed.h"
#include "media/full.h"
#include "media/persist.h"
#include "own_limit.h"
#include "rows.h"

enum pm_backing pm_backing(void) {
    switch (pm_heap_state()) {
    case PM_HEAP_SHARED:
        return pm_fixed_is_open() ? PM_BACKING_PARTS : PM_BACKING_FILES;
    case PM_HEAP_JOURNALED:
        return PM_BACKING_JOURNALED;
    case PM_HEAP_VOLATILE:
        return PM_BACKING_MEMORY;
    default:
        return PM_BACKING_DETACHED;
    }
}

// ---- length -------------------------------------------------------------------------------------

static bool set_length(struct pm_shard *s, uint64_t bytes) {
    switch (pm_backing()) {
    case PM_BACKING_FILES:
        return pm_files_set_length(s, bytes);
    case PM_BACKING_PARTS:
        return pm_parts_set_length(s, bytes);
    case PM_BACKING_JOURNALED:
        return pm_journaled_set_length(s, bytes);
    default:
        return pm_memory_set_length(s, bytes);
    }
}

// Room in the limit of the heap, for all shards together.
static bool reserve_within(uint64_t more) {
    if (atomic_fetch_add_explicit(&pm_heap.length, more, memory_order_relaxed) + more <=
        pm_heap.limit)
        return true;
    atomic_fetch_sub_explicit(&pm_heap.length, more, memory_order_relaxed);
    return false;
}

static bool reserve_length(uint64_t more) {
    uint64_t seen = pm_heap.limit;
    if (reserve_within(more) || (pm_own_limit_look(seen) && reserve_within(more)))
        return true;
    pm_full_note(PM_FULL_LIMIT);
    return false;
}

bool pm_heap_may_grow(uint64_t more) {
    uint64_t seen = pm_heap.limit;
    if (pm_heap.length + more <= seen ||
        (pm_own_limit_look(seen) && pm_heap.length + more <= pm_heap.limit))
        return true;
    pm_full_note(PM_FULL_LIMIT);
    return false;
}

bool pm_shard_set_frontier(struct pm_shard *s, uint64_t bytes) {
    uint64_t more = bytes > s->frontier ? bytes - s->frontier : 0;
    uint64_t less = bytes < s->frontier ? s->frontier - bytes : 0;
    if (more && (bytes > s->limit || !reserve_length(more)))
        return false;
    bool good = set_length(s, bytes);
    if (good)
        s->frontier = bytes;
    atomic_fetch_sub_explicit(&pm_heap.length, good ? less : more, memory_order_relaxed);
    return good;
}

bool pm_shard_cut(struct pm_shard *s, uint64_t bytes) {
    return pm_backing() != PM_BACKING_JOURNALED || pm_journaled_cut(s, bytes);
}

// ---- space --------------------------------------------------------------------------------------

bool pm_heap_allocate_space(uint64_t offset, uint64_t len) {
    struct pm_shard *s = pm_shard_at(offset);
    switch (pm_backing()) {
    case PM_BACKING_FILES:
        return pm_files_allocate(s, offset, len);
    case PM_BACKING_PARTS:
        return pm_file_ready(&s->data);
    case PM_BACKING_JOURNALED:
        return pm_journaled_allocate(s, offset, len);
    default:
        return true;
    }
}

bool pm_heap_promise_space(uint64_t offset, uint64_t len, bool *empty) {
    *empty = false;
    return pm_backing() != PM_BACKING_JOURNALED ||
           pm_journaled_promise(pm_shard_at(offset), offset, len, empty);
}

// A part of a medium has the space of its addresses.
uint64_t pm_shard_outstanding(struct pm_shard *s, uint64_t promised) {
    return pm_heap_on_media() && !s->data.length ? pm_files_outstanding(s, promised) : 0;
}

#define SPARE ((uint64_t)128 << 10) // for a shard's files of metadata, which grow, too

bool pm_shard_has_room(struct pm_shard *s, uint64_t len, uint64_t promised, bool *known) {
    *known = true;
    if (!pm_heap_on_media() || s->data.length)
        return true;
    uint64_t more = len + pm_files_outstanding(s, promised) + SPARE * pm_heap.shards;
    return pm_files_have_room(s, more, known) &&
           (pm_backing() != PM_BACKING_JOURNALED || pm_journaled_has_room(s, more));
}

bool pm_heap_release_space(uint64_t offset, uint64_t len) {
    switch (pm_backing()) {
    case PM_BACKING_FILES:
        return pm_files_release(pm_shard_at(offset), offset, len);
    case PM_BACKING_PARTS:
        return true;
    case PM_BACKING_JOURNALED:
        return pm_emptied_add(offset, len);
    case PM_BACKING_MEMORY:
        return pm_memory_release(offset, len);
    default:
        return pm_detached_release(offset, len);
    }
}

bool pm_heap_vacate(uint64_t offset, uint64_t len) {
    return pm_backing() == PM_BACKING_JOURNALED ? pm_emptied_promise(offset, len)
                                                : pm_heap_release_space(offset, len);
}

// ---- what it has, and what it shows -------------------------------------------------------------

uint64_t pm_heap_unit(void) {
    return pm_heap_on_media() && pm_persist_dax() && !pm_heap_is_fixed() ? PM_HUGE_PAGE
                                                                         : PM_PAGE_SIZE;
}

bool pm_heap_released_is_zero(void) { return !pm_heap_is_fixed(); }

// A commit says that pages are zeroes, whatever it lies in.
bool pm_heap_vacated_is_zero(void) { return pm_backing() != PM_BACKING_PARTS; }

bool pm_heap_fresh_is_zero(void) { return !pm_heap_is_fixed() || pm_fixed.zeroed; }

bool pm_heap_length_is_frontier(void) {
    return pm_backing() == PM_BACKING_FILES || pm_backing() == PM_BACKING_PARTS;
}

bool pm_heap_shows_holes(void) { return pm_backing() == PM_BACKING_FILES; }

uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end) {
    return pm_heap_shows_holes() ? pm_heap_next_in_file(known, offset, end) : end - *offset;
}

void pm_shard_is_anonymous(struct pm_shard *s, uint64_t writable) {
    s->anonymous = (struct pm_lazy_table){pm_heap_at(s->offset), s->limit, writable, true};
}

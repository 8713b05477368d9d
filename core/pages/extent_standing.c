// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_standing.h"

#include <string.h>

#include "base/options.h"
#include "extent_entry.h"
#include "free_extents.h"

bool pm_standing_may(const struct pm_extent *e) {
    return (e->pages > PM_CACHED_PAGES_MAX || e->kind) && !e->slab && !e->held && !e->used &&
           e->log != PM_LOG_NOWHERE && pm_options.decay_ms.number;
}

void pm_standing_put(struct pm_shard *s, uint32_t index) {
    struct pm_shard_extents *x = s->extents;
    struct pm_extent *e = &pm_extents[index];
    if (x->standing_count == PM_STANDING)
        pm_standing_end(s, 0);
    e->zero = 0;
    e->stands = 1;
    e->older = (uint32_t)x->decay.step;
    // Others ask whether anything stands before they take the lock.
    x->standing[x->standing_count] = index;
    __atomic_store_n(&x->standing_count, x->standing_count + 1, __ATOMIC_RELAXED);
}

static bool fits(const struct pm_extent *e, const struct pm_sought *sought) {
    uint64_t most = sought->pages + (sought->pages < PM_HUGE_PAGES ? sought->pages / 8 : 0);
    return e->pages >= sought->pages && e->pages <= most && e->kind == sought->kind &&
           (!pm_kind_is_typed(e->kind) || e->type == sought->type) &&
           !(e->page & (sought->align_pages - 1));
}

// Takes `count` of the standing extents away, from the one at `from` on.
static void take_away(struct pm_shard_extents *x, uint32_t from, uint32_t count) {
    uint32_t left = x->standing_count - count;
    if (from < left)
        memmove(x->standing + from, x->standing + from + count,
                (left - from) * sizeof *x->standing);
    __atomic_store_n(&x->standing_count, left, __ATOMIC_RELAXED);
}

// The newest that fits: what is warm is used again, and the rest ages.
static uint32_t take(struct pm_shard *s, const struct pm_sought *sought) {
    struct pm_shard_extents *x = s->extents;
    for (uint32_t i = x->standing_count; i-- > 0;) {
        uint32_t index = x->standing[i];
        struct pm_extent *e = &pm_extents[index];
        if (!fits(e, sought))
            continue;
        take_away(x, i, 1);
        e->stands = 0;
        pm_extent_set_tag(e);
        return index;
    }
    return 0;
}

uint32_t pm_standing_take(unsigned node, const struct pm_sought *sought) {
    uint32_t index = 0;
    for (unsigned i = 0; !index && i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        if (s->node != node || !__atomic_load_n(&s->extents->standing_count, __ATOMIC_RELAXED))
            continue;
        pm_lock(&s->lock);
        index = take(s, sought);
        pm_unlock(&s->lock);
    }
    return index;
}

// A tombstone flushes a line that was not flushed just before; but where each flush waits for the
// disk, there is one for all.
static void end_entries(struct pm_shard *s, uint32_t first) {
    if (pm_persist_waits())
        pm_extent_unlog_all(s, first);
    else
        for (uint32_t index = first; index; index = pm_extents[index].next)
            pm_extent_unlog(s, &pm_extents[index]);
}

// They stand by age, so those that end are the first ones.
bool pm_standing_end(struct pm_shard *s, uint64_t steps) {
    struct pm_shard_extents *x = s->extents;
    uint32_t first = 0, ended = 0;
    while (ended < x->standing_count) {
        struct pm_extent *e = &pm_extents[x->standing[ended]];
        if ((uint32_t)x->decay.step - e->older < steps)
            break;
        e->next = first;
        first = x->standing[ended++];
    }
    if (!ended)
        return false;
    take_away(x, 0, ended);
    end_entries(s, first);
    for (uint32_t index = first, next; index; index = next) {
        next = pm_extents[index].next;
        pm_extent_free(s, index);
    }
    return true;
}

void pm_standing_forget(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_heap.shard[i].extents->standing_count = 0;
}

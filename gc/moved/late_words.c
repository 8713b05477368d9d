// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "late_words.h"

#include <string.h>

#include "blocks/slab.h"
#include "media/backing/backing.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent.h"
#include "roots/objects_record.h"
#include "roots/root_table.h"
#include "verdict.h"

// A record is written anew if it has so many places that no word leads to any more. It has room for
// PM_OBJECTS_MOST, and programs at random places add some at each start.
#define LEFT_MOST 64u

static const struct pm_range_of_words *range;
static unsigned ranges;
static struct pm_late_words *found;

static void look_at(uint64_t *word) {
    uint64_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
    struct pm_matched to;
    unsigned i = 0;
    while (i < ranges && value - range[i].start >= range[i].end - range[i].start)
        i++;
    if (i == ranges)
        return;
    enum pm_verdict verdict = pm_verdict_of(value, &to, found->why);
    found->unsure +=
        verdict == PM_VERDICT_UNSURE || verdict == PM_VERDICT_STALE || verdict == PM_VERDICT_COPIED;
    if (verdict != PM_VERDICT_CHANGES ||
        !__atomic_compare_exchange_n(word, &value, to.at, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    found->changed++;
    pm_flush(word, sizeof *word);
}

static void look_at_bytes(char *at, uint64_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)at & 7;
    for (uint64_t *word = (uint64_t *)(void *)(at + skip); skip + 8 <= len; skip += 8)
        look_at(word++);
}

static void look_at_root(const void *at, uint64_t len, const char *name, void *unused) {
    (void)name, (void)unused;
    look_at_bytes((char *)(uintptr_t)at, len);
}

// Without the holes, which would get space.
static void look_at_extent(const struct pm_extent *e) {
    struct pm_written known = {0};
    uint64_t at = pm_heap_offset(pm_extent_address(e)), end = at + pm_extent_bytes(e);
    unsigned kind = e->slab ? pm_vslabs[pm_extent_slab(e)].kind : e->kind;
    for (uint64_t len;
         pm_kind_has_pointers(kind) && at < end && (len = pm_heap_next_data(&known, &at, end)) != 0;
         at += len)
        look_at_bytes(pm_heap_at(at), len);
}

static void look_at_shard(struct pm_shard *s) {
    pm_lock(&s->lock);
    for (uint32_t i = pm_index_first(s); (i = pm_extent_next_active_in(s, i)) != 0;)
        look_at_extent(&pm_extents[i]);
    pm_unlock(&s->lock);
}

void pm_late_words(struct pm_late_words *done) {
    *done = (struct pm_late_words){0};
    found = done;
    ranges = pm_verdicts_begin_late(&range);
    for (unsigned i = 0; i < pm_heap.shards && ranges; i++)
        look_at_shard(&pm_heap.shard[i]);
    if (ranges)
        pm_roots_each_captured(look_at_root, NULL);
    pm_drain();
    if (done->changed || (pm_verdicts_left() >= LEFT_MOST && !done->unsure))
        pm_record_renew(pm_verdicts_kept());
}

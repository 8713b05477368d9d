// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stats.h"

#include <string.h>

#include "booklog.h"
#include "extent.h"
#include "guard.h"
#include "morph.h"
#include "persist.h"
#include "tcache.h"

// Walks a bin's listed slabs for their free blocks; full slabs are in no list and have none. Of slabs that hold blocks
// of two classes, the old ones count as their own class's, and those that they block do not count.
static void count_bin(struct pm_bin *bin, unsigned cls, struct pm_class_stats *out) {
    pm_lock(&bin->lock, PM_RANK_BIN);
    for (uint32_t slab = bin->list; slab; slab = pm_vslabs[slab - 1].next)
        out->free += pm_vslabs[slab - 1].free_count;
    for (uint32_t slab = bin->sparse; slab; slab = pm_vslabs[slab - 1].next)
        out->free += pm_vslabs[slab - 1].free_count;
    out->slabs += bin->slabs;
    out->blocks += (uint64_t)bin->slabs * pm_classes[cls].blocks - bin->blocked;
    // Under other bins' locks: it may fall behind by what is freed meanwhile.
    out->blocks += atomic_load_explicit(&bin->guests, memory_order_relaxed);
    pm_unlock(&bin->lock, PM_RANK_BIN);
}

static void count_class(unsigned cls, struct pm_stats *out) {
    struct pm_class_stats *c = &out->cls[cls];
    for (unsigned a = 0; a < pm_arena_count; a++)
        count_bin(&pm_arenas[a].bin[cls], cls, c);
    uint64_t rest = c->blocks - c->free, held = pm_tcache_held(cls);
    c->cached = held < rest ? held : rest; // a thread may have filled its cache since
    c->used = rest - c->cached;
    out->cached_bytes += c->cached * pm_classes[cls].size;
    out->small_used_bytes += c->used * pm_classes[cls].size;
    out->slab_bytes += c->slabs * PM_SLAB_SIZE;
}

void pm_stats_get(struct pm_stats *out) {
    memset(out, 0, sizeof *out);
    if (pm_nested())
        return;
    struct pm_guard guard = pm_guard_enter();
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        count_class(cls, out);
    struct pm_extent_stats e = pm_extent_stats();
    out->large_bytes = (e.active_pages - e.slab_pages) << PM_PAGE_SHIFT;
    out->large_blocks = e.active - e.slab_pages / (PM_SLAB_SIZE >> PM_PAGE_SHIFT);
    out->reclaimed_bytes = e.reclaimed_pages << PM_PAGE_SHIFT;
    out->retained_bytes = e.retained_pages << PM_PAGE_SHIFT;
    out->heap_bytes =
        out->slab_bytes + out->large_bytes + out->reclaimed_bytes + out->retained_bytes;
    out->log_bytes = pm_heap.persistent ? pm_log_stats().active * PM_CHUNK_SIZE : 0;
    out->threads = pm_tcache_live();
    out->morphs = atomic_load_explicit(&pm_morph_counters.begun, memory_order_relaxed);
    out->morphs_ended = atomic_load_explicit(&pm_morph_counters.ended, memory_order_relaxed);
    pm_guard_leave(guard);
}

// ---- as text -----------------------------------------------------------------------------------------

typedef unsigned long ulong_t; // what %lu takes

static void say_sums(const struct pm_stats *s) {
    uint64_t blocks = 0, unused = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        blocks += s->cls[cls].used;
        unused += s->cls[cls].free * pm_classes[cls].size;
    }
    pm_say("stats: in use %lu bytes = %lu in %lu small blocks + %lu in %lu large blocks",
           (ulong_t)(s->small_used_bytes + s->large_bytes), (ulong_t)s->small_used_bytes,
           (ulong_t)blocks, (ulong_t)s->large_bytes, (ulong_t)s->large_blocks);
    pm_say("stats: heap %lu bytes = slabs %lu + large blocks %lu + free and kept %lu + free "
           "address space %lu",
           (ulong_t)s->heap_bytes, (ulong_t)s->slab_bytes, (ulong_t)s->large_bytes,
           (ulong_t)s->reclaimed_bytes, (ulong_t)s->retained_bytes);
    pm_say("stats: slabs %lu bytes = in use %lu + cached by %lu threads %lu + free %lu + slabs' "
           "ends %lu",
           (ulong_t)s->slab_bytes, (ulong_t)s->small_used_bytes, (ulong_t)s->threads,
           (ulong_t)s->cached_bytes, (ulong_t)unused,
           (ulong_t)(s->slab_bytes - s->small_used_bytes - s->cached_bytes - unused));
}

static void say_arena(const struct pm_arena *arena) {
    uint64_t slabs = 0, fills = 0, flushes = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        slabs += arena->bin[cls].slabs;
        fills += arena->bin[cls].fills;
        flushes += arena->bin[cls].flushes;
    }
    if (slabs || fills || flushes)
        pm_say("stats: arena %u: %u threads, %lu slabs; %lu times blocks were taken, %lu times "
               "given back",
               arena->number, atomic_load_explicit(&arena->threads, memory_order_relaxed),
               (ulong_t)slabs, (ulong_t)fills, (ulong_t)flushes);
}

static void say_media(void) {
    if (!pm_heap.persistent)
        return;
    struct pm_log_stats log = pm_log_stats();
    pm_say("stats: log %lu of %lu chunks in use, %lu entries stand; collected %lu times by "
           "dropping chunks, %lu times by copying",
           (ulong_t)log.active, (ulong_t)log.chunks, (ulong_t)log.live, (ulong_t)log.fast_gcs,
           (ulong_t)log.slow_gcs);
    pm_say("stats: %lu flushes of metadata, %lu drains%s",
           (ulong_t)atomic_load_explicit(&pm_persist_flushes, memory_order_relaxed),
           (ulong_t)atomic_load_explicit(&pm_persist_drains, memory_order_relaxed),
           pm_durability == PM_DURABLE_NONE ? ", which cost nothing on this file system" : "");
}

void pm_stats_say(void) {
    if (pm_nested())
        return;
    struct pm_stats s;
    pm_stats_get(&s);
    struct pm_guard guard = pm_guard_enter();
    say_sums(&s);
    for (unsigned a = 0; a < pm_arena_count; a++)
        say_arena(&pm_arenas[a]);
    say_media();
    pm_say("stats: %lu slabs took up blocks of another size, %lu gave up the last old one",
           (ulong_t)s.morphs, (ulong_t)s.morphs_ended);
    pm_say("stats:    size    slabs     blocks     in use   cached       free");
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        if (s.cls[cls].blocks)
            pm_say("stats: %7u %8lu %10lu %10lu %8lu %10lu", pm_classes[cls].size,
                   (ulong_t)s.cls[cls].slabs, (ulong_t)s.cls[cls].blocks, (ulong_t)s.cls[cls].used,
                   (ulong_t)s.cls[cls].cached, (ulong_t)s.cls[cls].free);
    pm_guard_leave(guard);
}

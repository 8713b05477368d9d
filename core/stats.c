// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stats.h"

#include <string.h>

#include "booklog.h"
#include "extent.h"
#include "guard.h"
#include "tcache.h"

// Walks a bin's listed slabs for their free blocks; full slabs are in no list and have none.
static void count_bin(struct pm_bin *bin, unsigned cls, struct pm_class_stats *out) {
    pm_lock(&bin->lock, PM_RANK_BIN);
    uint64_t total = (uint64_t)bin->slabs * pm_classes[cls].blocks, unused = 0;
    for (uint32_t slab = bin->list; slab; slab = pm_vslabs[slab - 1].next)
        unused += pm_vslabs[slab - 1].free_count;
    out->slabs += bin->slabs;
    out->blocks += total;
    out->used += total - unused;
    pm_unlock(&bin->lock, PM_RANK_BIN);
}

void pm_stats_get(struct pm_stats *out) {
    memset(out, 0, sizeof *out);
    if (pm_nested())
        return;
    struct pm_guard guard = pm_guard_enter();
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        struct pm_class_stats *c = &out->cls[cls];
        for (unsigned a = 0; a < pm_arena_count; a++)
            count_bin(&pm_arenas[a].bin[cls], cls, c);
        uint64_t held = pm_tcache_held(cls);
        c->used -= held < c->used ? held : c->used;
        out->cached_bytes += held * pm_classes[cls].size;
        out->small_used_bytes += c->used * pm_classes[cls].size;
        out->slab_bytes += c->slabs * PM_SLAB_SIZE;
    }
    struct pm_extent_stats e = pm_extent_stats();
    out->large_bytes = (e.active_pages - e.slab_pages) << PM_PAGE_SHIFT;
    out->large_blocks = e.active - e.slab_pages / (PM_SLAB_SIZE >> PM_PAGE_SHIFT);
    out->heap_bytes = pm_heap.frontier;
    out->reclaimed_bytes = e.reclaimed_pages << PM_PAGE_SHIFT;
    out->retained_bytes = e.retained_pages << PM_PAGE_SHIFT;
    out->log_bytes = pm_heap.persistent ? pm_log_stats().active * PM_CHUNK_SIZE : 0;
    out->threads = pm_tcache_live();
    pm_guard_leave(guard);
}

void pm_stats_say(void) {
    struct pm_stats s;
    pm_stats_get(&s);
    pm_say("in use: %lu bytes in small blocks, %lu bytes in %lu large blocks; cached by %lu "
           "threads: %lu "
           "bytes",
           (unsigned long)s.small_used_bytes, (unsigned long)s.large_bytes,
           (unsigned long)s.large_blocks, (unsigned long)s.threads, (unsigned long)s.cached_bytes);
    pm_say(
        "heap: %lu bytes, of which slabs %lu, free and kept %lu, free address space %lu; log %lu",
        (unsigned long)s.heap_bytes, (unsigned long)s.slab_bytes, (unsigned long)s.reclaimed_bytes,
        (unsigned long)s.retained_bytes, (unsigned long)s.log_bytes);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        if (s.cls[cls].slabs)
            pm_say("class %5u: %8lu of %8lu blocks in %6lu slabs", pm_classes[cls].size,
                   (unsigned long)s.cls[cls].used, (unsigned long)s.cls[cls].blocks,
                   (unsigned long)s.cls[cls].slabs);
}

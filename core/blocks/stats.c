// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stats.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "base/cancel.h"
#include "base/nodes.h"
#include "extent_cache.h"
#include "media/commit/commit.h"
#include "media/log/log.h"
#include "media/persist.h"
#include "morph.h"
#include "pages/extent_take.h"
#include "reach.h"
#include "returns.h"
#include "take_back.h"
#include "tcache.h"

static void count_steps(const struct pm_bin *bin, struct pm_stats *out) {
    uint64_t own = bin->fills;
    for (unsigned step = PM_STEP_OWN + 1; step < PM_STEPS; step++) {
        out->steps[step] += bin->steps[step];
        own -= bin->steps[step];
    }
    out->steps[PM_STEP_OWN] += own;
    out->fills += bin->fills;
}

// Adds up the free blocks of a bin's listed slabs. Full slabs are in no list and have none. Old
// blocks count for their own class. Blocked blocks are left out.
static void count_bin(struct pm_bin *bin, unsigned cls, struct pm_stats *stats) {
    struct pm_class_stats *out = &stats->cls[cls];
    pm_lock(&bin->lock);
    stats->remote_frees += bin->remote_returns;
    for (uint32_t slab = bin->list; slab; slab = pm_vslabs[slab - 1].next)
        out->free += pm_vslabs[slab - 1].free_count;
    for (uint32_t slab = bin->sparse; slab; slab = pm_vslabs[slab - 1].next)
        out->free += pm_vslabs[slab - 1].free_count;
    out->free += (uint64_t)bin->empty * pm_classes[cls].blocks;
    out->slabs += bin->slabs;
    out->blocks += (uint64_t)bin->slabs * pm_classes[cls].blocks - bin->blocked;
    // Other bins' locks cover it, so it may miss what is freed at this moment.
    out->blocks += atomic_load_explicit(&bin->lodged_elsewhere, memory_order_relaxed);
    count_steps(bin, stats);
    pm_unlock(&bin->lock);
}

static void count_class(unsigned cls, struct pm_stats *out) {
    struct pm_class_stats *c = &out->cls[cls];
    for (unsigned a = 0; a < pm_arena_count; a++)
        if (pm_arena_is_made(&pm_arenas[a])) // of a node that no thread has used none is
            count_bin(&pm_arenas[a].bin[cls], cls, out);
    uint64_t rest = c->blocks - c->free, held = pm_tcache_held(cls);
    c->cached = held < rest ? held : rest; // a thread may have filled its cache meanwhile
    c->used = rest - c->cached;
    out->cached_bytes += c->cached * pm_classes[cls].size;
    out->small_used_bytes += c->used * pm_classes[cls].size;
    out->slab_bytes += c->slabs * PM_SLAB_SIZE;
}

static uint64_t counted(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void get_take_backs(struct pm_stats *out) {
    out->take_backs = counted(&pm_take_back_counters.times);
    out->blocks_taken_back = counted(&pm_take_back_counters.blocks);
    out->caches_asked = counted(&pm_take_back_counters.asked);
    out->failed = counted(&pm_take_back_counters.failed);
}

void pm_stats_get(struct pm_stats *out) {
    memset(out, 0, sizeof *out);
    if (pm_nested())
        return;
    struct pm_cancel held = pm_cancel_hold();
    pm_remote_drain_all();
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        count_class(cls, out);
    struct pm_extent_stats e = pm_extent_stats();
    out->large_bytes = (e.active_pages - e.slab_pages - e.cached_pages) << PM_PAGE_SHIFT;
    out->large_blocks = e.active - e.slab_pages / (PM_SLAB_SIZE >> PM_PAGE_SHIFT) - e.cached;
    out->large_cached_bytes = e.cached_pages << PM_PAGE_SHIFT;
    out->large_cached = e.cached;
    out->hole_bytes = e.holes << PM_PAGE_SHIFT;
    out->reclaimed_bytes = e.reclaimed_pages << PM_PAGE_SHIFT;
    out->retained_bytes = e.retained_pages << PM_PAGE_SHIFT;
    out->heap_bytes = out->slab_bytes + out->large_bytes + out->large_cached_bytes +
                      out->reclaimed_bytes + out->retained_bytes;
    out->log_bytes = pm_heap_on_media() ? pm_log_stats_sum().active * PM_CHUNK_SIZE : 0;
    out->threads = pm_tcache_live();
    out->morphs = counted(&pm_morph_counters.begun);
    out->morphs_ended = counted(&pm_morph_counters.ended);
    out->moves = counted(&pm_tcache_moves);
    out->large_far = counted(&pm_alloc_far);
    out->misplaced = pm_tcache_misplaced();
    get_take_backs(out);
    pm_cancel_release(held);
}

// ---- as text ------------------------------------------------------------------------------------

typedef unsigned long ulong_t; // what %lu takes

static void say_sums(const struct pm_stats *s) {
    uint64_t blocks = 0, unused = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        blocks += s->cls[cls].used;
        unused += s->cls[cls].free * pm_classes[cls].size;
    }
    pm_event(PM_EV_STATS,
             "stats: in use %lu bytes = %lu in %lu small blocks + %lu in %lu large blocks",
             (ulong_t)(s->small_used_bytes + s->large_bytes), (ulong_t)s->small_used_bytes,
             (ulong_t)blocks, (ulong_t)s->large_bytes, (ulong_t)s->large_blocks);
    pm_event(
        PM_EV_STATS,
        "stats: heap %lu bytes = slabs %lu + large blocks %lu + cached %lu + free and kept %lu "
        "+ free address space %lu",
        (ulong_t)s->heap_bytes, (ulong_t)s->slab_bytes, (ulong_t)s->large_bytes,
        (ulong_t)s->large_cached_bytes, (ulong_t)s->reclaimed_bytes, (ulong_t)s->retained_bytes);
    pm_event(PM_EV_STATS,
             "stats: slabs %lu bytes = in use %lu + cached by %lu threads %lu + free %lu + slabs' "
             "ends %lu",
             (ulong_t)s->slab_bytes, (ulong_t)s->small_used_bytes, (ulong_t)s->threads,
             (ulong_t)s->cached_bytes, (ulong_t)unused,
             (ulong_t)(s->slab_bytes - s->small_used_bytes - s->cached_bytes - unused));
    if (s->hole_bytes)
        pm_event(PM_EV_STATS, "stats: slabs: %lu bytes of what is free have no space on the medium",
                 (ulong_t)s->hole_bytes);
}

static void say_arena(const struct pm_arena *arena) {
    uint64_t slabs = 0, fills = 0, returns = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        slabs += arena->bin[cls].slabs;
        fills += arena->bin[cls].fills;
        returns += arena->bin[cls].returns;
    }
    if (slabs || fills || returns)
        pm_event(PM_EV_STATS,
                 "stats: arena %u%s: %u threads, %lu slabs; blocks were taken %lu times "
                 "and returned %lu times",
                 arena->number, pm_arena_recovers(arena) ? ", of recovered slabs" : "",
                 pm_arena_threads(arena), (ulong_t)slabs, (ulong_t)fills, (ulong_t)returns);
}

static void say_nodes(const struct pm_stats *s) {
    char groups[32] = "";
    if (pm_nodes.machine > pm_nodes.count)
        snprintf(groups, sizeof groups, " in %u groups", pm_nodes.count);
    pm_event(PM_EV_STATS,
             "stats: %u nodes%s: %lu times a thread moved to another one; %lu blocks were freed "
             "from another one, %lu large blocks came from another one; caches hold %lu blocks of "
             "another one",
             *groups ? pm_nodes.machine : pm_nodes.count, groups, (ulong_t)s->moves,
             (ulong_t)s->remote_frees, (ulong_t)s->large_far, (ulong_t)s->misplaced);
}

static void say_steps(const struct pm_stats *s) {
    pm_event(
        PM_EV_STATS,
        "stats: blocks were taken %lu times = own bin %lu + other arenas %lu + slabs of another "
        "size %lu + those of other arenas %lu + new slabs %lu + lent %lu + by other nodes %lu + "
        "none found %lu",
        (ulong_t)s->fills, (ulong_t)s->steps[PM_STEP_OWN], (ulong_t)s->steps[PM_STEP_NODE],
        (ulong_t)s->steps[PM_STEP_MORPH], (ulong_t)s->steps[PM_STEP_MORPH_OTHER],
        (ulong_t)s->steps[PM_STEP_GROW], (ulong_t)s->steps[PM_STEP_LEND],
        (ulong_t)s->steps[PM_STEP_FAR], (ulong_t)s->steps[PM_STEP_NONE]);
    if (pm_nodes.count > 1)
        say_nodes(s);
    pm_event(
        PM_EV_STATS,
        "stats: kept memory was taken back %lu times, with %lu blocks of other threads' caches; "
        "%lu requests failed",
        (ulong_t)s->take_backs, (ulong_t)s->blocks_taken_back, (ulong_t)s->failed);
}

static void say_extent_caches(const struct pm_stats *s) {
    struct pm_extent_cache_stats c;
    pm_extent_cache_stats(&c);
    if (c.frees + c.misses == 0)
        return;
    pm_event(PM_EV_STATS,
             "stats: large blocks: %lu are cached; %lu were freed into caches; requests: %lu by "
             "another arena's cache, %lu by none",
             (ulong_t)s->large_cached, (ulong_t)c.frees, (ulong_t)c.stolen, (ulong_t)c.misses);
    pm_event(PM_EV_STATS,
             "stats: large blocks: %lu left the caches by age, %lu for need of space, %lu by "
             "malloc_trim",
             (ulong_t)c.aged, (ulong_t)c.needed, (ulong_t)c.trimmed);
}

static void add_persisted(const struct pm_persist_count *c, uint64_t *flushes, uint64_t *drains) {
    *flushes += counted(&c->flushes);
    *drains += counted(&c->drains);
}

static void say_media(void) {
    if (!pm_heap_on_media())
        return;
    struct pm_log_stats log = pm_log_stats_sum();
    pm_event(PM_EV_STATS,
             "stats: log %lu of %lu chunks in use, %lu entries stand; dead chunks were "
             "dropped %lu times, the log was compacted %lu times",
             (ulong_t)log.active, (ulong_t)log.chunks, (ulong_t)log.live, (ulong_t)log.chunk_drops,
             (ulong_t)log.compactions);
    uint64_t flushes = 0, drains = 0;
    add_persisted(&pm_persist_others, &flushes, &drains);
    for (unsigned a = 0; a < pm_arena_count; a++)
        add_persisted(&pm_arenas[a].persisted, &flushes, &drains);
    pm_event(PM_EV_STATS, "stats: %lu flushes of metadata, %lu drains%s", (ulong_t)flushes,
             (ulong_t)drains,
             pm_durability == PM_DURABLE_NONE ? ", which cost nothing on this file system" : "");
}

static void say_commits(void) {
    const struct pm_commit_cost *cost = &pm_commit_last;
    if (pm_heap_is_journaled())
        pm_event(
            PM_EV_STATS,
            "stats: %lu commits, %lu of them forced by PMALLOC_COMMIT_PAGES; the last one wrote "
            "%lu pages, left %lu copied, and threads stood still for %.1f ms",
            (ulong_t)atomic_load_explicit(&pm_commit_count, memory_order_relaxed),
            (ulong_t)atomic_load_explicit(&pm_commit_forced, memory_order_relaxed),
            (ulong_t)cost->pages, (ulong_t)cost->copied, (double)cost->held_us / 1000);
}

void pm_stats_say(void) {
    if (pm_nested())
        return;
    struct pm_stats s;
    pm_stats_get(&s);
    struct pm_cancel held = pm_cancel_hold();
    pm_inside_leave(); // nobody may read this: a handler may have to end the program
    say_sums(&s);
    for (unsigned a = 0; a < pm_arena_count; a++)
        say_arena(&pm_arenas[a]);
    say_extent_caches(&s);
    say_steps(&s);
    say_media();
    say_commits();
    pm_event(PM_EV_STATS,
             "stats: %lu slabs took up blocks of another size, %lu gave up the last old one",
             (ulong_t)s.morphs, (ulong_t)s.morphs_ended);
    pm_event(PM_EV_STATS, "stats:    size    slabs     blocks     in use   cached       free");
    PM_EACH_CLASS(cls)
        if (s.cls[cls].blocks)
            pm_event(PM_EV_STATS, "stats: %7u %8lu %10lu %10lu %8lu %10lu", pm_classes[cls].size,
                     (ulong_t)s.cls[cls].slabs, (ulong_t)s.cls[cls].blocks,
                     (ulong_t)s.cls[cls].used, (ulong_t)s.cls[cls].cached,
                     (ulong_t)s.cls[cls].free);
    pm_inside_enter();
    pm_cancel_release(held);
}

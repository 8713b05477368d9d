// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "age.h"

#include <errno.h>

#include "base/options.h"
#include "base/os.h"
#include "extent_cache.h"
#include "holes.h"
#include "nearly_full.h"
#include "pages/extent_holes.h"
#include "pages/free_extents.h"
#include "pages/frontier.h"
#include "returns.h"
#include "take_back.h"
#include "tcache.h"

#define HEADERS 128u // of extents that one step looks at
#define AT_ONCE 128u // slabs that pm_age_punch() looks at between two looks at the extents
#define WORTH_IT (PM_SLAB_PAGES / 2)

// What pm_vslab.quiet says.
enum { USED, SEEN, DONE };

// Half of the decay time.
static uint64_t interval(void) { return pm_options.decay_ms.number / 2; }

// Whether an interval has passed since *last; for one thread of those that ask. Relaxed: it orders
// nothing.
static bool passed(_Atomic uint64_t *last, uint64_t now) {
    uint64_t seen = atomic_load_explicit(last, memory_order_relaxed);
    return now - seen >= interval() &&
           atomic_compare_exchange_strong_explicit(last, &seen, now, memory_order_relaxed,
                                                   memory_order_relaxed);
}

// ---- pages of slabs -----------------------------------------------------------------------------

// A slab without blocks of this kind has class 0. `home` is read again under the lock of its bin.
static struct pm_bin *bin_of(uint32_t home) {
    unsigned cls = pm_home_class(home);
    return cls && pm_classes[cls].size >= PM_HOLES_FROM ? &pm_arenas[pm_home_arena(home)].bin[cls]
                                                        : NULL;
}

static void look_at_slab(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t home = pm_slab_home(v);
    struct pm_bin *bin = bin_of(home);
    if (!bin || !pm_trylock_raw(&bin->lock))
        return;
    if (pm_slab_home(v) == home && v->quiet < DONE && v->quiet++ == SEEN)
        pm_holes_punch(slab, WORTH_IT);
    pm_unlock_raw(&bin->lock);
}

// A round looks once at every slab. The next begins when an interval has passed. Threads share a
// round: of those that look at the same headers, one goes on. 0: no round is under way.
static _Atomic uint32_t next_extent;
static _Atomic uint64_t round_ms;

// Returns whether a round is under way.
static bool look_at_some(uint64_t now) {
    uint32_t slab[HEADERS];
    uint32_t seen = atomic_load_explicit(&next_extent, memory_order_relaxed), next = seen;
    if (!pm_extent_may_punch() || (seen == 0 && !passed(&round_ms, now)))
        return false;
    next += seen == 0;
    unsigned count = pm_extent_some_slabs(&next, HEADERS, slab, HEADERS);
    if (!atomic_compare_exchange_strong_explicit(&next_extent, &seen, next, memory_order_relaxed,
                                                 memory_order_relaxed))
        return true;
    for (unsigned i = 0; i < count; i++)
        look_at_slab(slab[i]);
    return next != 0;
}

static uint64_t punch_slab(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t home = pm_slab_home(v);
    struct pm_bin *bin = bin_of(home);
    uint64_t pages = 0;
    if (!bin)
        return 0;
    pm_lock(&bin->lock);
    if (pm_slab_home(v) == home)
        pages = pm_holes_punch(slab, 1);
    pm_unlock(&bin->lock);
    return pages;
}

uint64_t pm_age_punch(void) {
    uint32_t slab[AT_ONCE], index = 1;
    uint64_t pages = 0;
    if (!pm_extent_may_punch())
        return 0;
    do {
        unsigned count = pm_extent_some_slabs(&index, UINT32_MAX, slab, AT_ONCE);
        for (unsigned i = 0; i < count; i++)
            pages += punch_slab(slab[i]);
    } while (index);
    return pages;
}

// ---- all of it ----------------------------------------------------------------------------------

static void age(uint64_t now, bool all) {
    unsigned bins = all ? pm_arena_count * PM_CLASSES : 1;
    static _Atomic uint64_t caches_ms;
    int saved = errno;
    if (all && passed(&caches_ms, now))
        pm_take_back_idle();
    if (all)
        pm_remote_drain_all();
    pm_extent_cache_age();
    for (unsigned i = 0; i < bins; i++)
        pm_arenas_age();
    while (look_at_some(now) && all) {
    }
    pm_extent_purge(false);
    pm_nearly_full_look(now);
    errno = saved;
}

// Not more often than the coarse clock ticks. `last` is read first, so that threads do
// not write the same line.
void pm_age(void) {
    static _Atomic uint64_t last;
    uint64_t now = pm_os_now_ms();
    if (atomic_load_explicit(&last, memory_order_relaxed) != now &&
        atomic_exchange_explicit(&last, now, memory_order_relaxed) != now)
        age(now, false);
}

void pm_age_all(void) { age(pm_os_now_ms(), true); }

static uint64_t sum_of_pages(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        const struct pm_shard_extents *x = s->extents;
        pm_lock(&s->lock);
        sum +=
            x->active.pages + 3 * x->reclaimed.pages + 5 * x->active.holes + 17 * x->standing_count;
        pm_unlock(&s->lock);
    }
    return sum;
}

uint64_t pm_age_activity(void) {
    struct pm_extent_cache_stats c;
    pm_extent_cache_stats(&c);
    uint64_t sum = sum_of_pages() + 7 * c.frees + 11 * c.aged;
    for (unsigned i = 0; i < pm_arena_count; i++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            const struct pm_bin *bin = &pm_arenas[i].bin[cls];
            sum += __atomic_load_n(&bin->fills, __ATOMIC_RELAXED) +
                   __atomic_load_n(&bin->returns, __ATOMIC_RELAXED) +
                   13 * __atomic_load_n(&bin->empty, __ATOMIC_RELAXED);
        }
    return sum;
}

_Atomic uint32_t pm_age_asleep;

void pm_age_arm(void) {
    pm_lock(&pm_tcache_lock);
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        __atomic_store_n(&t->granules, 0, __ATOMIC_RELAXED);
    pm_unlock(&pm_tcache_lock);
    pm_extent_caches_look_soon();
}

void pm_age_wake(void) {
    if (atomic_exchange_explicit(&pm_age_asleep, 0, memory_order_relaxed))
        pm_futex_wake(&pm_age_asleep, 1);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "beside.h"

#include <errno.h>

#include "base/os.h"
#include "blocks/arena.h"
#include "kept.h"
#include "mark.h"
#include "mark_index.h"
#include "media/backing/file_at.h"
#include "media/backing/snapshot.h"
#include "media/heap.h"
#include "pages/extent_take.h"
#include "roots/root_table.h"

// What the sweep takes for as long as marking a byte.
#define SLAB_BYTES 2048u // for a slab, or a large block that it frees
#define STRIPE_BYTES 16u // for a look at a stripe

struct pm_beside_counters pm_beside_counters;

static uint64_t next_stripe;
static uint32_t next_large;
static uint64_t begun_ms;

static void become(enum pm_beside_stage stage) {
    atomic_store_explicit(&pm_beside_counters.stage, stage, memory_order_relaxed);
}

bool pm_beside_begin(struct pm_error *err) {
    const struct pm_mark_options how = {.beside = true};
    begun_ms = pm_os_now_ms();
    if (!pm_snapshot_take()) {
        pm_fail(err, PM_OPERATIONAL, "no second mapping of the heap: %s", pm_strerror(errno));
        return false;
    }
    if (pm_mark_begin(&how, err) != PM_OK || pm_roots_each(pm_mark_root, NULL, err) != PM_OK) {
        pm_mark_end();
        pm_snapshot_drop();
        return false;
    }
    next_stripe = next_large = 0;
    become(PM_BESIDE_MARK);
    return true;
}

static void count(uint64_t blocks, uint64_t bytes) {
    atomic_fetch_add_explicit(&pm_beside_counters.blocks, blocks, memory_order_relaxed);
    atomic_fetch_add_explicit(&pm_beside_counters.bytes, bytes, memory_order_relaxed);
}

// False: there are no more.
static bool sweep_slabs(uint64_t bytes) {
    for (uint64_t done = 0; next_stripe < pm_marks.stripes && done < bytes; next_stripe++) {
        uint32_t slab = (uint32_t)next_stripe, cls = pm_marks.kind[slab];
        done += STRIPE_BYTES;
        if (cls - 1 >= PM_CLASSES)
            continue;
        unsigned blocks = pm_arena_reclaim(slab, cls, pm_mark_bits(slab, cls));
        count(blocks, (uint64_t)blocks * pm_classes[cls].size);
        done += SLAB_BYTES;
    }
    return next_stripe < pm_marks.stripes;
}

static bool sweep_large(uint64_t bytes) {
    for (uint64_t done = 0; next_large < pm_marks.larges && done < bytes; next_large++) {
        const struct pm_large *l = &pm_marks.large[next_large];
        done += STRIPE_BYTES;
        if (l->marked || l->mixed)
            continue;
        if (pm_extent_free_block(pm_heap_at(l->page << PM_PAGE_SHIFT)))
            count(1, (uint64_t)l->pages << PM_PAGE_SHIFT);
        done += SLAB_BYTES;
    }
    return next_large < pm_marks.larges;
}

static void end(void) {
    pm_mark_end();
    pm_snapshot_drop();
    pm_kept_record(PM_KEPT_COLLECTED);
    atomic_store_explicit(&pm_beside_counters.milliseconds, pm_os_now_ms() - begun_ms,
                          memory_order_relaxed);
    become(PM_BESIDE_DONE);
}

// The snapshot is asked last: a commit notes what it cannot copy before it changes that.
static bool mark(uint64_t bytes, struct pm_error *err) {
    bool more = pm_mark_some(bytes);
    const void *bad = pm_snapshot_unreadable();
    if (bad)
        return !pm_file_unreadable(bad, false, "start the program", err);
    if (!more)
        become(PM_BESIDE_SWEEP);
    return true;
}

bool pm_beside_step(uint64_t bytes, struct pm_error *err) {
    int saved = errno;
    bool good = true;
    if (!pm_heap_is_journaled())
        pm_beside_stop();
    else if (pm_beside_counters.stage == PM_BESIDE_MARK)
        good = mark(bytes, err);
    else if (pm_beside_counters.stage == PM_BESIDE_SWEEP && !sweep_slabs(bytes) &&
             !sweep_large(bytes))
        end();
    errno = saved;
    return good;
}

void pm_beside_stop(void) {
    if (!pm_beside_is_on())
        return;
    become(PM_BESIDE_NONE);
    pm_mark_end();
    pm_snapshot_drop();
}

void pm_beside_forked(void) {
    if (!pm_beside_is_on())
        return;
    become(PM_BESIDE_NONE);
    pm_snapshot_forked();
    pm_mark_end();
}

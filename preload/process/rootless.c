// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rootless.h"

#include <unistd.h>

#include "base/options.h"
#include "blocks/stats.h"
#include "media/heap.h"

#define NEXT                                                                                       \
    "name the variables that lead to your data (-r NAME, PMALLOC_ROOTS; `pmalloc-run --roots "     \
    "PROGRAM` lists them), or say that it is meant so: PMALLOC_ROOTLESS=quiet"

static bool is_lost(bool default_heap) {
    return pm_options.rootless.number == PM_ROOTLESS_SAY && pm_heap_on_media() && !default_heap &&
           (!pm_heap_has_roots() || pm_heap_roots_are_dropped()) &&
           pm_heap.super->state.owner_pid == (uint64_t)getpid();
}

void pm_rootless_say_start(bool default_heap, const struct pm_recovery *recovery) {
    if (is_lost(default_heap) && !pm_heap.created && recovery->reclaimed_bytes)
        pm_event(PM_EV_NO_ROOT,
                 "heap %.300s: no root reached the %lu bytes in it, and they are gone; " NEXT,
                 pm_heap.dir, (unsigned long)recovery->reclaimed_bytes);
}

void pm_rootless_say_end(bool default_heap) {
    if (!is_lost(default_heap))
        return;
    if (pm_heap_roots_are_dropped()) { // what is thrown away cannot be told from what they keep
        pm_event(
            PM_EV_NO_ROOT,
            "heap %.200s has no root but dropped ones (`pmalloc-recover --rename-root` gives one "
            "back): what this run has left in it is thrown away; " NEXT,
            pm_heap.dir);
        return;
    }
    struct pm_stats stats;
    pm_stats_get(&stats);
    uint64_t blocks = stats.large_blocks;
    for (unsigned i = 0; i <= PM_CLASSES; i++)
        blocks += stats.cls[i].used;
    if (blocks)
        pm_event(PM_EV_NO_ROOT,
                 "heap %.300s has no root: its %lu block%s of %lu bytes are thrown away; " NEXT,
                 pm_heap.dir, (unsigned long)blocks, blocks == 1 ? "" : "s",
                 (unsigned long)(stats.small_used_bytes + stats.large_bytes));
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "nearly_full.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/options.h"
#include "base/os_file.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "pages/shard_extents.h"

#define EACH_MS 100
#define FALLS 5 // so many percent less, and the first line may come again

// The parts of something that has an end.
struct use {
    uint64_t used, all;
};

static unsigned percent(struct use u) {
    return u.all ? (unsigned)((double)u.used * 100 / (double)u.all) : 0;
}

// Free extents count as room: the heap uses them before it grows.
static struct use of_limit(void) {
    struct use sum = {0, 0};
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        pm_lock(&s->lock);
        sum.used += s->extents->active.pages << PM_PAGE_SHIFT;
        sum.all += s->limit;
        pm_unlock(&s->lock);
    }
    if (!pm_fixed_is_open() || sum.all > pm_heap.limit)
        sum.all = pm_heap.limit;
    return sum;
}

// As df counts it: what only root may use is in use.
static struct use of_file_system(struct pm_shard *s) {
    struct pm_os_space space;
    if (s->data.length || !pm_file_ready(&s->data) || !pm_os_space(s->data.fd, &space))
        return (struct use){0, 0};
    return (struct use){space.used, space.used + space.free};
}

static struct use of_file_systems(void) {
    struct use least = of_file_system(&pm_heap.shard[0]);
    for (unsigned i = 1; i < pm_heap.shards; i++) {
        struct use u = of_file_system(&pm_heap.shard[i]);
        least = percent(u) < percent(least) ? u : least;
    }
    return least;
}

static void say(struct use limit, struct use disk) {
    if (percent(disk) >= percent(limit))
        pm_event(PM_EV_NEARLY_FULL,
                 "the file system of the heap %.300s is %u%% full, and %lu bytes are left; make "
                 "room there, or give the heap a directory on another device while the program "
                 "runs: pmalloc-recover --grow %.300s:DIR",
                 pm_heap.dir, percent(disk), (unsigned long)(disk.all - disk.used), pm_heap.dir);
    else if (pm_fixed_is_open())
        pm_event(PM_EV_NEARLY_FULL,
                 "the heap %.300s uses %u%% of its file or device, %lu of %lu bytes; when the "
                 "program has ended, make that longer, and call pmalloc-recover --grow",
                 pm_heap.dir, percent(limit), (unsigned long)limit.used, (unsigned long)limit.all);
    else
        pm_event(PM_EV_NEARLY_FULL,
                 "the heap %.300s uses %u%% of PMALLOC_LIMIT, %lu of %lu bytes; pmalloc-recover "
                 "--grow --size SIZE %.300s raises that while the program runs",
                 pm_heap.dir, percent(limit), (unsigned long)limit.used, (unsigned long)limit.all,
                 pm_heap.dir);
}

// What has to be in use for the next line; 0: nothing was said yet.
static _Atomic unsigned next;

void pm_nearly_full_look(uint64_t now) {
    static _Atomic uint64_t last;
    uint64_t seen = atomic_load_explicit(&last, memory_order_relaxed);
    unsigned from = (unsigned)pm_options.warn.number;
    if (!from || now - seen < EACH_MS || !pm_heap_on_media() ||
        !atomic_compare_exchange_strong(&last, &seen, now))
        return;
    struct use limit = of_limit(), disk = of_file_systems();
    unsigned most = percent(limit) > percent(disk) ? percent(limit) : percent(disk);
    unsigned wanted = next ? next : from;
    if (most >= wanted) {
        next = most + (100 - (most < 100 ? most : 99) + 1) / 2;
        say(limit, disk);
    } else if (most + FALLS < from) {
        next = 0;
    }
}

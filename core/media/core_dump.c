// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "core_dump.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/os.h"
#include "heap.h"

#define DUMP_STEP ((uint64_t)4 << 20)

static uint64_t with_spare(uint64_t used) {
    uint64_t to = (used + used / 8 + DUMP_STEP) & ~(DUMP_STEP - 1), reach = pm_shard_reach();
    return to < reach ? to : reach;
}

static void leave_out_rest(struct pm_shard *s) {
    uint64_t from = s->dumped = with_spare(s->frontier), reach = pm_shard_reach();
    // Behind the last shard there is nothing, so one call does for it and what is not used.
    uint64_t end = pm_shard_number(s) + 1u == pm_heap.shards ? pm_range : s->offset + reach;
    pm_os_advise(pm_heap_at(s->offset + from), end - s->offset - from, MADV_DONTDUMP);
}

void pm_shard_dump_used(struct pm_shard *s) {
    const struct pm_file *file[] = {&s->slabs, &s->log, &s->morph};
    int saved = errno;
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++)
        if (file[i]->map)
            pm_os_advise(file[i]->map, file[i]->reach, MADV_DONTDUMP);
    leave_out_rest(s);
    errno = saved;
}

void pm_heap_dump_used(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_shard_dump_used(&pm_heap.shard[i]);
}

void pm_shard_dump_up_to(struct pm_shard *s, uint64_t used) {
    int saved = errno;
    uint64_t to = with_spare(used), from = s->dumped;
    if (used > from && pm_os_advise(pm_heap_at(s->offset + from), to - from, MADV_DODUMP))
        s->dumped = to;
    errno = saved;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "shard_place.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/nodes.h"
#include "base/options.h"
#include "heap.h"

static void place(const void *at, size_t len, unsigned id) {
    const unsigned word = 8 * sizeof(unsigned long);
    unsigned long mask[1024 / (8 * sizeof(unsigned long))] = {0};
    unsigned long mode = pm_options.numa.number == PM_NUMA_BIND ? MPOL_BIND : MPOL_PREFERRED;
    mask[id / word] = 1ul << id % word;
    syscall(SYS_mbind, at, len, mode, mask, 1024ul, 0L);
}

void pm_shard_place(const struct pm_shard *s) {
    const struct pm_file *files[] = {&s->data, &s->slabs, &s->log, &s->morph};
    int saved = errno;
    if (pm_nodes.count == 1 || pm_nodes.injected)
        return;
    unsigned id = pm_nodes.id[s->node];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i]->map)
            place(files[i]->map, files[i]->reach, id);
    if (!pm_heap_on_media())
        place(pm_heap_at(s->offset), pm_shard_reach(), id);
    errno = saved;
}

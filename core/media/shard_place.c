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

#define KERNEL_NODES 1024ul
#define WORD (8 * sizeof(unsigned long))
#ifndef MPOL_PREFERRED_MANY
#define MPOL_PREFERRED_MANY 5
#endif

struct mask {
    unsigned long bits[KERNEL_NODES / WORD];
    unsigned nodes;
};

static void set_mask(struct mask *m, unsigned node, unsigned most) {
    *m = (struct mask){.nodes = 0};
    for (unsigned id = 0; id < KERNEL_NODES && m->nodes < most; id++)
        if (pm_node_has(node, id)) {
            m->bits[id / WORD] |= 1ul << id % WORD;
            m->nodes++;
        }
}

static bool bind(const void *at, size_t len, unsigned long mode, const struct mask *m) {
    return syscall(SYS_mbind, at, len, mode, m->bits, KERNEL_NODES, 0L) == 0;
}

// Of several nodes of the kernel's that are one of ours, a page comes from the one that is nearest
// to the thread which touches it first. Before Linux 5.15 the first of them is preferred.
static void place(const void *at, size_t len, unsigned node) {
    struct mask m;
    set_mask(&m, node, ~0u);
    unsigned long mode = pm_options.numa.number == PM_NUMA_BIND ? MPOL_BIND
                         : m.nodes > 1                          ? MPOL_PREFERRED_MANY
                                                                : MPOL_PREFERRED;
    if (bind(at, len, mode, &m) || mode != MPOL_PREFERRED_MANY)
        return;
    set_mask(&m, node, 1);
    bind(at, len, MPOL_PREFERRED, &m);
}

void pm_shard_place(const struct pm_shard *s) {
    const struct pm_file *files[] = {&s->data, &s->slabs, &s->log, &s->morph};
    int saved = errno;
    if (pm_nodes.count == 1 || pm_nodes.injected)
        return;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i]->map)
            place(files[i]->map, files[i]->reach, s->node);
    if (!pm_heap_on_media())
        place(pm_heap_at(s->offset), pm_shard_reach(), s->node);
    errno = saved;
}

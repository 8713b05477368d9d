// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "machine_nodes.h"

#include <numa.h>
#include <numaif.h>
#include <stdlib.h>

#include "base/nodes.h"
#include "base/options.h"

// libnuma calls these two, and has its own where a program has none. It would write to standard
// error on its own where /sys or /proc cannot be read; here each function says whether it could.
__attribute__((visibility("default"))) void numa_warn(int number, char *where, ...) {
    (void)number;
    (void)where;
}
__attribute__((visibility("default"))) void numa_error(char *where) { (void)where; }

int machine_nodes_find(struct pm_error *err) {
    const char *injected = getenv("PMALLOC_TOPOLOGY");
    int status = injected ? pm_option_set("PMALLOC_TOPOLOGY", injected, err) : PM_OK;
    return status == PM_OK ? pm_nodes_find(err) : status;
}

unsigned machine_nodes_end(void) {
    return numa_available() < 0 ? 0 : (unsigned)numa_max_node() + 1;
}

static unsigned cores_of(unsigned id) {
    struct bitmask *cores = numa_allocate_cpumask();
    unsigned count = numa_node_to_cpus((int)id, cores) == 0 ? numa_bitmask_weight(cores) : 0;
    numa_free_cpumask(cores);
    return count;
}

bool machine_node_look(unsigned id, struct machine_node *out) {
    long long free = 0;
    if (id >= machine_nodes_end() || !numa_bitmask_isbitset(numa_nodes_ptr, id))
        return false;
    long long bytes = numa_node_size64((int)id, &free);
    *out = (struct machine_node){id, cores_of(id), bytes > 0 ? (uint64_t)bytes : 0,
                                 free > 0 ? (uint64_t)free : 0};
    return true;
}

unsigned machine_nodes_distance(unsigned id, unsigned other) {
    int distance = machine_nodes_end() ? numa_distance((int)id, (int)other) : 0;
    return distance > 0 ? (unsigned)distance : 0;
}

static unsigned group_of(unsigned id) {
    unsigned node = 0;
    while (node < pm_nodes.count && !pm_node_has(node, id))
        node++;
    return node;
}

unsigned machine_node_group(unsigned id) {
    unsigned best = group_of(id), nearest = ~0u;
    if (best < pm_nodes.count)
        return best;
    best = 0;
    for (unsigned other = 0; other < machine_nodes_end(); other++) {
        unsigned distance = machine_nodes_distance(id, other), node = group_of(other);
        if (node < pm_nodes.count && distance && distance < nearest) {
            nearest = distance;
            best = node;
        }
    }
    return best;
}

// ---- pages --------------------------------------------------------------------------------------

int machine_page_node(const void *page) {
    int node = -1;
    void *at = (void *)(uintptr_t)page;
    return get_mempolicy(&node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR) == 0 ? node : -1;
}

// While pages move they may lie nowhere else: else the kernel would leave those alone that are
// where the policy allows. Afterwards a full node need be no reason to kill a process.
void machine_pages_move(void *at, size_t len, unsigned id) {
    struct bitmask *there = numa_allocate_nodemask();
    numa_bitmask_setbit(there, id);
    mbind(at, len, MPOL_BIND, there->maskp, there->size + 1, MPOL_MF_MOVE);
    mbind(at, len, MPOL_PREFERRED, there->maskp, there->size + 1, 0);
    numa_free_nodemask(there);
}

void machine_node_prefer(unsigned id) { numa_set_preferred((int)id); }

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "nodes.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "node_files.h"
#include "options.h"
#include "os.h"
#include "own_memory.h"

struct pm_nodes pm_nodes = {.count = 1};

// What is known of several nodes, in memory of its own: on a machine with one there is none.
static struct tables {
    struct pm_node_list with_cores;      // the machine's nodes that have processor cores
    uint8_t node_of_id[PM_KERNEL_NODES]; // the node that each of the kernel's belongs to, + 1
    uint8_t near[PM_NODES_MAX][PM_NODES_MAX];
    struct pm_core_set ours; // the cores that this process may run on
} * tables;

// Without memory, there is one node.
static bool add_tables(const struct pm_node_list *with_cores) {
    if (!tables)
        tables = pm_own_reserve(sizeof *tables);
    if (tables)
        *tables = (struct tables){.with_cores = *with_cores};
    return tables;
}

unsigned pm_node_near(unsigned node, unsigned turn) {
    return pm_nodes.ordered ? tables->near[node][turn] : (node + turn) % pm_nodes.count;
}

bool pm_node_has(unsigned node, unsigned id) {
    return tables && id < PM_KERNEL_NODES && tables->node_of_id[id] == node + 1;
}

// ---- groups -------------------------------------------------------------------------------------

// Needs memory for a row of distances of each node; without it, nothing is known of them. Two nodes
// have no order.
static struct pm_node_distances distances(void) {
    unsigned count = tables->with_cores.count;
    struct pm_node_distances d = {count, NULL};
    size_t bytes = (size_t)count * count;
    if (count < 3 || (pm_nodes.injected && !pm_node_folder))
        return d;
    uint8_t *row = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (row == MAP_FAILED)
        return d;
    d.row = row;
    struct pm_node_list online;
    pm_node_list("online", &online);
    for (unsigned i = 0; i < count && d.row; i++)
        if (!pm_node_distance(tables->with_cores.id[i], &online, &tables->with_cores,
                              row + (size_t)i * count))
            d.row = NULL;
    if (!d.row)
        munmap(row, bytes);
    return d;
}

// Of `tables->with_cores`: which of them are one node of ours.
static void group_nodes(void) {
    uint8_t group[PM_KERNEL_NODES];
    struct pm_node_distances d = distances();
    pm_nodes.machine = tables->with_cores.count;
    pm_nodes.count = pm_node_groups(d, PM_NODES_MAX, group);
    if ((pm_nodes.ordered = d.row))
        pm_node_order(d, group, pm_nodes.count, tables->near[0], PM_NODES_MAX);
    if (d.row)
        munmap((void *)(uintptr_t)d.row, (size_t)d.count * d.count);
    for (unsigned i = 0; i < tables->with_cores.count; i++)
        tables->node_of_id[tables->with_cores.id[i]] = (uint8_t)(group[i] + 1);
}

// ---- the machine's ------------------------------------------------------------------------------

// Whether the kernel says that this process may use the memory of one node only. It costs one
// system call; some sandboxes refuse it.
static bool one_node(void) {
    unsigned long mask[PM_KERNEL_NODES / (8 * sizeof(unsigned long))] = {0};
    unsigned nodes = 0;
    if (syscall(SYS_get_mempolicy, NULL, mask, PM_KERNEL_NODES + 0ul, NULL, MPOL_F_MEMS_ALLOWED) !=
        0)
        return false;
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
        nodes += (unsigned)__builtin_popcountl(mask[i]);
    return nodes == 1;
}

static unsigned cores_of(unsigned id, struct pm_core_set *set) {
    const size_t words = sizeof set->bits / sizeof *set->bits;
    unsigned count = 0;
    pm_node_cores(id, set);
    for (size_t i = 0; i < words; i++) {
        if (!pm_nodes.injected)
            set->bits[i] &= tables->ours.bits[i];
        count += (unsigned)__builtin_popcountl(set->bits[i]);
    }
    return count;
}

static void count_cores(void) {
    for (unsigned i = 0; i < tables->with_cores.count; i++) {
        struct pm_core_set set = {{0}};
        unsigned node = tables->node_of_id[tables->with_cores.id[i]] - 1u;
        pm_nodes.cores_of[node] =
            (uint16_t)(pm_nodes.cores_of[node] + cores_of(tables->with_cores.id[i], &set));
    }
}

void pm_node_stay(unsigned node) {
    struct pm_core_set set = {{0}};
    unsigned count = 0;
    if (pm_nodes.count == 1 || pm_nodes.injected)
        return;
    for (unsigned i = 0; i < tables->with_cores.count; i++)
        if (pm_node_has(node % pm_nodes.count, tables->with_cores.id[i]))
            count += cores_of(tables->with_cores.id[i], &set);
    if (count)
        sched_setaffinity(0, sizeof set, (const cpu_set_t *)(const void *)&set);
}

// The node of ours that one of the kernel's belongs to. Without cores: that of the nearest one that
// has some.
static int node_at(unsigned id) {
    uint8_t row[PM_KERNEL_NODES];
    struct pm_node_list online;
    unsigned best = 0;
    if (tables->node_of_id[id])
        return tables->node_of_id[id] - 1;
    pm_node_list("online", &online);
    if (!pm_node_distance(id, &online, &tables->with_cores, row))
        return 0;
    for (unsigned i = 1; i < tables->with_cores.count; i++)
        if (row[i] < row[best])
            best = i;
    return tables->node_of_id[tables->with_cores.id[best]] - 1;
}

// A test's folder may have files for its devices, too.
static int node_in(const char *kind, dev_t device, const char *name) {
    char path[320], text[16], *end;
    snprintf(path, sizeof path, "%.255sdev/%s/%u:%u/%s", pm_node_folder ? pm_node_folder : "/sys/",
             kind, major(device), minor(device), name);
    if (pm_nodes.count == 1 || (pm_nodes.injected && !pm_node_folder) ||
        !pm_node_text(path, text, sizeof text))
        return -1;
    long id = strtol(text, &end, 10);
    return end != text && id >= 0 && id < PM_KERNEL_NODES ? node_at((unsigned)id) : -1;
}

int pm_node_of_device(dev_t device) { return node_in("block", device, "device/numa_node"); }

int pm_node_of_dax(dev_t device) { return node_in("char", device, "numa_node"); }

// Of more than one node, or nothing happens.
static bool read_nodes(void) {
    struct pm_node_list with_cores;
    pm_node_list("has_cpu", &with_cores);
    if (with_cores.count < 2 || !add_tables(&with_cores))
        return false;
    if (!pm_nodes.injected &&
        sched_getaffinity(0, sizeof tables->ours, (cpu_set_t *)(void *)&tables->ours) != 0)
        return false;
    group_nodes();
    count_cores();
    return true;
}

// ---- injected -----------------------------------------------------------------------------------

// A thread of an injected topology: its node of the machine's + 1, or 0 before it has been asked
// for; and how often it has been since the thread came there.
static __thread struct { uint32_t node, looks; } self __attribute__((tls_model("initial-exec")));
#define CORES_MOST 4096u
static uint32_t move_every;
static _Atomic uint32_t dealt;

// Reads a number from 1 to `most`, and moves *text after it.
static bool number(const char **text, unsigned long most, unsigned *out) {
    char *end;
    unsigned long value = **text >= '0' && **text <= '9' ? strtoul(*text, &end, 10) : 0;
    if (value < 1 || value > most)
        return false;
    *text = end;
    *out = (unsigned)value;
    return true;
}

static void inject_equal(unsigned nodes, unsigned cores) {
    struct pm_node_list all = {.count = nodes};
    for (unsigned i = 0; i < nodes; i++)
        all.id[i] = (uint16_t)i;
    if (!add_tables(&all))
        return;
    group_nodes();
    for (unsigned i = 0; i < nodes; i++)
        pm_nodes.cores_of[tables->node_of_id[i] - 1] += (uint16_t)cores;
}

static int inject_folder(const char *folder, struct pm_error *err) {
    pm_node_folder = folder;
    if (read_nodes())
        return PM_OK;
    return pm_fail(err, PM_USAGE,
                   "PMALLOC_TOPOLOGY=%.200s: %.200shas_cpu tells of less than two nodes", folder,
                   folder);
}

static int inject(const char *text, struct pm_error *err) {
    unsigned nodes = 0, cores = 0, moves = 0;
    const char *at = text;
    pm_nodes.injected = true;
    pm_node_folder = NULL;
    if (*text == '/')
        return inject_folder(text, err);
    bool good = number(&at, PM_KERNEL_NODES, &nodes) && *at++ == 'x' && number(&at, 256, &cores);
    good = good && (!*at || (*at++ == '/' && number(&at, 1u << 30, &moves)));
    if (!good || *at || nodes * cores > CORES_MOST)
        return pm_fail(
            err, PM_USAGE,
            "PMALLOC_TOPOLOGY=%.200s: not a valid value; use NODESxCORES or "
            "NODESxCORES/MOVES, of up to %u nodes with up to 256 cores each and %u in all, or "
            "/FOLDER/ with files as in /sys/devices/system/node/",
            text, PM_KERNEL_NODES, CORES_MOST);
    inject_equal(nodes, cores);
    move_every = moves;
    return PM_OK;
}

static unsigned injected_node(void) {
    bool shared = pm_nodes.machine > pm_nodes.count;
    unsigned most = shared ? pm_nodes.machine : pm_nodes.count;
    if (!self.node)
        self.node = 1 + dealt++ % most;
    if (move_every && ++self.looks >= move_every) {
        self.looks = 0;
        self.node = 1 + self.node % most;
    }
    return shared ? tables->node_of_id[tables->with_cores.id[self.node - 1]] - 1u : self.node - 1;
}

void pm_node_move(unsigned node) {
    self.node = 1 + node;
    self.looks = 0;
}

// ---- the thread's -------------------------------------------------------------------------------

// glibc registers a struct rseq for each thread, which begins at this offset from the thread
// pointer. Linux stores the node there since 6.3, and says so in the auxiliary vector. Weak: other
// C libraries and older glibc have neither.
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif
#define RSEQ_NODE 20 // offset of node_id

static bool by_rseq;

static bool rseq_tells(void) {
    return &__rseq_offset && &__rseq_size && __rseq_size &&
           getauxval(AT_RSEQ_FEATURE_SIZE) >= RSEQ_NODE + sizeof(uint32_t);
}

static unsigned kernel_node(void) {
    if (by_rseq)
        return __atomic_load_n((const uint32_t *)(const void *)((char *)__builtin_thread_pointer() +
                                                                __rseq_offset + RSEQ_NODE),
                               __ATOMIC_RELAXED);
    unsigned core, node = 0;
#ifdef __GLIBC__
    return getcpu(&core, &node) == 0 ? node : 0; // no system call: the vDSO answers
#else
    return syscall(SYS_getcpu, &core, &node, NULL) == 0 ? node : 0;
#endif
}

unsigned pm_node_look(void) {
    if (pm_nodes.injected)
        return injected_node();
    unsigned id = kernel_node();
    return tables && id < PM_KERNEL_NODES && tables->node_of_id[id] ? tables->node_of_id[id] - 1u
                                                                    : 0;
}

// ---- all of it ----------------------------------------------------------------------------------

unsigned pm_nodes_cores(void) { return pm_nodes.cores ? pm_nodes.cores : pm_os_cores(); }

int pm_nodes_find(struct pm_error *err) {
    int saved = errno, status = PM_OK;
    pm_nodes = (struct pm_nodes){.count = 1, .machine = 1, .cores = pm_os_cores()};
    by_rseq = rseq_tells();
    if (pm_options.topology.text[0])
        status = inject(pm_options.topology.text, err);
    else if (pm_options.numa.number != PM_NUMA_OFF && !one_node())
        read_nodes();
    if (pm_options.numa.number == PM_NUMA_OFF)
        pm_nodes = (struct pm_nodes){.count = 1, .machine = 1, .cores = pm_nodes.cores};
    errno = saved;
    return status;
}

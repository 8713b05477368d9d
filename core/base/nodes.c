// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "options.h"
#include "os.h"

#define KERNEL_NODES 1024 // more than any kernel numbers

struct pm_nodes pm_nodes = {.count = 1};

// ---- the machine's ------------------------------------------------------------------------------

// Whether the kernel says that this process may use the memory of one node only. It costs one
// system call; some sandboxes refuse it.
static bool one_node(void) {
    unsigned long mask[KERNEL_NODES / (8 * sizeof(unsigned long))] = {0};
    unsigned nodes = 0;
    if (syscall(SYS_get_mempolicy, NULL, mask, KERNEL_NODES + 0ul, NULL, MPOL_F_MEMS_ALLOWED) != 0)
        return false;
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
        nodes += (unsigned)__builtin_popcountl(mask[i]);
    return nodes == 1;
}

static bool read_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

// Calls `each` for the numbers of a list of the kernel's, as "0-3,8".
static void each_of_list(const char *text, void (*each)(unsigned number, void *arg), void *arg) {
    while (*text >= '0' && *text <= '9') {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (; first <= last && first < 1ul << 16; first++)
            each((unsigned)first, arg);
        text = *end == ',' ? end + 1 : end;
    }
}

static cpu_set_t ours; // the cores that this process may run on; read with the nodes

struct cores {
    cpu_set_t set;
    unsigned count;
};

static void add_core(unsigned core, void *arg) {
    struct cores *c = arg;
    if (core >= CPU_SETSIZE || !CPU_ISSET(core, &ours))
        return;
    CPU_SET(core, &c->set);
    c->count++;
}

static void cores_of_node(unsigned id, struct cores *c) {
    char path[64], text[4096];
    *c = (struct cores){.count = 0};
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", id);
    if (read_text(path, text, sizeof text))
        each_of_list(text, add_core, c);
}

void pm_node_stay(unsigned node) {
    struct cores c;
    if (pm_nodes.count == 1 || pm_nodes.injected)
        return;
    cores_of_node(pm_nodes.id[node % pm_nodes.count], &c);
    if (c.count)
        sched_setaffinity(0, sizeof c.set, &c.set);
}

static uint8_t node_of_id[KERNEL_NODES];

// Above PM_NODES_MAX, several of the kernel's nodes are taken for one.
static void add_node(unsigned id, void *arg) {
    unsigned *seen = arg, node = (*seen)++ % PM_NODES_MAX;
    struct cores c;
    if (id >= KERNEL_NODES)
        return;
    node_of_id[id] = (uint8_t)node;
    cores_of_node(id, &c);
    pm_nodes.cores_of[node] = (uint16_t)(pm_nodes.cores_of[node] + c.count);
    if (*seen <= PM_NODES_MAX)
        pm_nodes.id[node] = (uint16_t)id;
}

static int node_in(const char *path) {
    char text[16], *end;
    if (pm_nodes.count == 1 || pm_nodes.injected || !read_text(path, text, sizeof text))
        return -1;
    long id = strtol(text, &end, 10);
    return end != text && id >= 0 && id < KERNEL_NODES ? node_of_id[id] : -1;
}

int pm_node_of_device(dev_t device) {
    char path[80];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/device/numa_node", major(device),
             minor(device));
    return node_in(path);
}

int pm_node_of_dax(dev_t device) {
    char path[80];
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/numa_node", major(device), minor(device));
    return node_in(path);
}

static void read_machine(void) {
    char text[1024];
    unsigned seen = 0;
    if (one_node() || !read_text("/sys/devices/system/node/has_cpu", text, sizeof text) ||
        sched_getaffinity(0, sizeof ours, &ours) != 0)
        return;
    each_of_list(text, add_node, &seen);
    pm_nodes.count = seen < 1 ? 1 : seen < PM_NODES_MAX ? seen : PM_NODES_MAX;
}

// ---- injected -----------------------------------------------------------------------------------

// A thread of an injected topology: its node + 1, or 0 before it has been asked for; and how often
// it has been since the thread came there.
static __thread struct { uint32_t node, looks; } self __attribute__((tls_model("initial-exec")));
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

static int inject(const char *text, struct pm_error *err) {
    unsigned nodes = 0, cores = 0, moves = 0;
    const char *at = text;
    bool good = number(&at, PM_NODES_MAX, &nodes) && *at++ == 'x' && number(&at, 256, &cores);
    good = good && (!*at || (*at++ == '/' && number(&at, 1u << 30, &moves)));
    if (!good || *at)
        return pm_fail(err, PM_USAGE,
                       "PMALLOC_TOPOLOGY=%.200s: not a valid value; use NODESxCORES or "
                       "NODESxCORES/MOVES, of up to %u nodes with up to 256 cores each",
                       text, PM_NODES_MAX);
    pm_nodes.count = nodes;
    pm_nodes.injected = true;
    for (unsigned i = 0; i < nodes; i++)
        pm_nodes.cores_of[i] = (uint16_t)cores;
    move_every = moves;
    return PM_OK;
}

static unsigned injected_node(void) {
    if (!self.node)
        self.node = 1 + dealt++ % pm_nodes.count;
    if (move_every && ++self.looks >= move_every) {
        self.looks = 0;
        self.node = 1 + self.node % pm_nodes.count;
    }
    return self.node - 1;
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
    return id < KERNEL_NODES ? node_of_id[id] : 0;
}

// ---- all of it ----------------------------------------------------------------------------------

unsigned pm_nodes_cores(void) { return pm_nodes.cores ? pm_nodes.cores : pm_os_cores(); }

int pm_nodes_find(struct pm_error *err) {
    int saved = errno, status = PM_OK;
    pm_nodes = (struct pm_nodes){.count = 1, .cores = pm_os_cores()};
    by_rseq = rseq_tells();
    if (pm_options.topology.text[0])
        status = inject(pm_options.topology.text, err);
    else if (pm_options.numa.number != PM_NUMA_OFF)
        read_machine();
    if (pm_options.numa.number == PM_NUMA_OFF)
        pm_nodes = (struct pm_nodes){.count = 1, .cores = pm_nodes.cores};
    errno = saved;
    return status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Asks the kernel on which NUMA node each block lies, and compares that with the thread's node.
//
//     placed [BLOCKS [NODES [KEEP]]]
//
// One thread visits the nodes in turn, twice: it binds itself to one, allocates blocks of all
// sizes, touches them, and asks. After a move it first does some requests, so that one of them
// finds its cache empty and notices the move. Then threads bound to each node allocate at the same
// time. Each visit frees the blocks of the visit before, on another node. `kept` keeps a chain of
// blocks for the next run, which asks where they are, too. Prints "placed NODE BLOCKS WRONG" for
// each visit; exit status 1: a block is wrong.
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES = 16, MOST = 20000 };

struct kept {
    struct kept *next;
    unsigned node;
};
struct kept *kept;

static unsigned blocks = 2000, nodes = 2;
static size_t keep = sizeof(struct kept);
static int wrong_at_all;
static const size_t sizes[] = {16, 64, 100, 500, 2000, 9000, 16384, 20000, 70000, 300000};

// Processor N of this guest is on node N.
static void go_to(unsigned node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(node, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("placed: sched_setaffinity");
        exit(2);
    }
}

static int node_of(const void *p) {
    int node = -1;
    syscall(SYS_get_mempolicy, &node, NULL, 0, p, MPOL_F_NODE | MPOL_F_ADDR);
    return node;
}

static void *touched(size_t size) {
    char *p = malloc(size);
    if (!p) {
        perror("placed: malloc");
        exit(2);
    }
    memset(p, 1, size);
    return p;
}

// What is allocated, the first and the last byte, lies on the node.
static unsigned visit(unsigned node, void **held) {
    enum { NOTICE = 5000 };
    void *notice[NOTICE];
    unsigned wrong = 0;
    go_to(node);
    for (unsigned i = 0; i < NOTICE; i++) // more of one size than a cache holds
        notice[i] = touched(64);
    for (unsigned i = 0; i < NOTICE; i++)
        free(notice[i]);
    for (unsigned i = 0; i < blocks; i++) {
        size_t size = sizes[i % 50 < 45 ? i % 7 : 7 + i % 3];
        free(held[i]);
        char *p = held[i] = touched(size);
        wrong += node_of(p) != (int)node || node_of(p + size - 1) != (int)node;
    }
    struct kept *k = touched(keep);
    wrong += node_of(k) != (int)node;
    *k = (struct kept){NULL, node};
    k->next = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&kept, &k->next, k, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    printf("placed %u %u %u\n", node, blocks, wrong);
    wrong_at_all |= wrong != 0;
    return wrong;
}

static void *stay(void *arg) {
    void **held = calloc(MOST, sizeof *held);
    visit((unsigned)(uintptr_t)arg, held);
    visit((unsigned)(uintptr_t)arg, held);
    return NULL;
}

int main(int argc, char **argv) {
    static void *held[MOST];
    unsigned found = 0, strayed = 0;
    if (argc > 1)
        blocks = (unsigned)atoi(argv[1]) % MOST;
    if (argc > 2)
        nodes = (unsigned)atoi(argv[2]) % (NODES + 1);
    if (argc > 3 && (size_t)atoi(argv[3]) > keep)
        keep = (size_t)atoi(argv[3]);
    for (const struct kept *k = kept; k; k = k->next, found++)
        strayed += node_of(k) != (int)k->node;
    printf("kept %u wrong %u\n", found, strayed);
    for (unsigned turn = 0; turn < 2 * nodes; turn++)
        visit(turn % nodes, held);
    pthread_t thread[NODES];
    for (unsigned node = 0; node < nodes; node++)
        pthread_create(&thread[node], NULL, stay, (void *)(uintptr_t)node);
    for (unsigned node = 0; node < nodes; node++)
        pthread_join(thread[node], NULL);
    return wrong_at_all || strayed;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a machine of many NUMA nodes adds to `placed`; processor N of this guest is on node N.
//
//     distant near NODE NODES   prints the nodes that serve a thread's requests at the limit of the
//                               heap, in their order: "near NODE: NODE NODE ..."
//     distant memory            prints its own memory, "memory KIB", of a process with one thread
//     distant migrate           pmalloc_migrate(): prints "migrate RETURNED NODE", after a move to
//                               node 1
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int pmalloc_migrate(void) __attribute__((weak));

enum { NODES = 16, PIECE = 16 << 10, PIECES = 128, MOST = 1 << 16, CACHED = 5000 };
static void *piece[NODES][PIECES];

static void go_to(unsigned node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(node, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("distant: sched_setaffinity");
        exit(2);
    }
}

static int node_of(const void *p) {
    int node = -1;
    syscall(SYS_get_mempolicy, &node, NULL, 0, p, MPOL_F_NODE | MPOL_F_ADDR);
    return node;
}

// More requests than a cache answers: one of them notices that the thread has moved.
static void notice(void) {
    static void *held[CACHED];
    for (unsigned i = 0; i < CACHED; i++)
        held[i] = malloc(64);
    for (unsigned i = 0; i < CACHED; i++)
        free(held[i]);
}

static void near(unsigned node, unsigned nodes) {
    bool seen[NODES] = {false};
    for (unsigned n = 0; n < nodes; n++) {
        go_to(n);
        notice();
        for (unsigned i = 0; i < PIECES; i++)
            if ((piece[n][i] = malloc(PIECE)))
                memset(piece[n][i], 1, PIECE);
    }
    for (unsigned n = 0; n < nodes; n++)
        for (unsigned i = 0; i < PIECES; i++)
            free(piece[n][i]);
    go_to(node);
    notice();
    printf("near %u:", node);
    for (unsigned i = 0; i < MOST; i++) {
        char *p = malloc(PIECE);
        if (!p)
            break;
        memset(p, 1, PIECE);
        int at = node_of(p);
        if (at >= 0 && at < NODES && !seen[at]) {
            seen[at] = true;
            printf(" %d", at);
        }
    }
    putchar('\n');
}

static void memory(void) {
    char line[200];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "RssAnon:", 8) == 0)
            printf("memory %d\n", atoi(line + 8));
}

static void migrate(void) {
    go_to(0);
    notice();
    go_to(1);
    int moved = pmalloc_migrate ? pmalloc_migrate() : -1;
    char *p = malloc(64);
    memset(p, 1, 64);
    printf("migrate %d %d\n", moved, node_of(p));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "near") == 0 && argc == 4)
        near((unsigned)atoi(argv[2]) % NODES, (unsigned)atoi(argv[3]) % (NODES + 1));
    else if (strcmp(mode, "memory") == 0)
        memory();
    else if (strcmp(mode, "migrate") == 0)
        migrate();
    else
        return 16;
    return 0;
}

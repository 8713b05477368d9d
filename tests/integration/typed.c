// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of types. The table of those that a root reaches lies in root slot 0.
//
//   typed make      makes blocks, prints a line for each, then "ready", waits for a line, and ends
//   typed busy      the same while threads allocate and free
//   typed hold      opens the heap, changes nothing, "ready", waits
//
// A line: address, bytes asked for, type, pointer-free, pinned, reached.
#include "preload/pmalloc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 400u

static void make(bool reached, void **table, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        unsigned type = 1 + i % 6 * (i % 6 == 5 ? 13106 : 1); // the last is 65531
        unsigned flags =
            (i % 3 ? 0 : PMALLOC_POINTER_FREE) | (i % 4 || !reached ? 0 : PMALLOC_PINNED);
        size_t size = i % 40 == 7 ? 100000 : 16 + i % 50 * 37;
        void *p = pmalloc_alloc(size, 0, PMALLOC_TYPE(type) | flags | PMALLOC_ZERO);
        if (!p)
            exit(1);
        if (reached)
            table[i] = p;
        printf("%lu %zu %u %d %d %d\n", (unsigned long)p, size, type, i % 3 == 0,
               (flags & PMALLOC_PINNED) != 0, reached);
    }
}

static void *churn(void *seed) {
    void *own[200] = {0};
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (;;) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        unsigned k = (unsigned)(state >> 40) % 200;
        free(own[k]);
        own[k] = state >> 33 & 1 ? malloc(1 + (state >> 20) % 40000)
                                 : pmalloc_alloc(1 + (state >> 20) % 3000, 0, PMALLOC_TYPE(9));
    }
    return NULL;
}

int main(int argc, char **argv) {
    char line[16];
    pthread_t thread[2];
    if (argc != 2)
        return 2;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (strcmp(argv[1], "hold") != 0) {
        void **table = calloc(BLOCKS, sizeof *table);
        if (!table || pmalloc_set_root(0, table) != 0)
            return 1;
        make(true, table, BLOCKS);
        make(false, NULL, BLOCKS / 4);
    }
    if (pmalloc_commit() != 0 && getenv("PMALLOC_COMMIT"))
        return 1;
    for (uintptr_t i = 0; i < 2 && strcmp(argv[1], "busy") == 0; i++)
        if (pthread_create(&thread[i], NULL, churn, (void *)(i + 1)) != 0)
            return 1;
    puts("ready");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) ? 0 : 3;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that allocate, hand blocks to each other, and free what they get, of all sizes. Every
// block is checked when it is freed. A run goes on with the blocks that the last one left in
// `shared`. Ends with malloc_stats().
//
//     roam THREADS ROUNDS SEED
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 512 };

struct block {
    uint64_t size, check;
    unsigned char fill[];
};
struct {
    _Atomic(struct block *) slot[SLOTS];
} shared;

static unsigned long rounds;

static size_t size_of(unsigned random) {
    static const size_t most[] = {64, 256, 1024, 8192, 16384, 60000, 400000};
    return sizeof(struct block) + random / 8 % most[random % 7];
}

static struct block *make(size_t size) {
    struct block *b = malloc(size);
    if (!b) {
        fprintf(stderr, "roam: no memory for %zu bytes\n", size);
        exit(1);
    }
    memset(b->fill, (int)(size % 251), size - sizeof *b);
    b->size = size;
    atomic_thread_fence(memory_order_seq_cst);
    b->check = ~(uint64_t)size;
    return b;
}

static void end(struct block *b) {
    size_t size = b->size, length = size - sizeof *b;
    int good = b->check == ~(uint64_t)size;
    for (size_t i = 0; good && i<length; i += length> 999 ? 97 : 1)
        good = b->fill[i] == size % 251;
    if (!good) {
        fprintf(stderr, "roam: the block at %p of %zu bytes is damaged\n", (void *)b, size);
        abort();
    }
    b->check = 0;
    free(b);
}

static void *roam(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (unsigned long i = 0; i < rounds; i++) {
        struct block *b = make(size_of((unsigned)rand_r(&seed)));
        b = atomic_exchange(&shared.slot[(unsigned)rand_r(&seed) % SLOTS], b);
        if (b)
            end(b);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread[64];
    if (argc != 4)
        return 2;
    int threads = atoi(argv[1]), found = 0;
    rounds = strtoul(argv[2], NULL, 10);
    for (int i = 0; i < SLOTS; i++)
        found += shared.slot[i] != NULL;
    for (int i = 0; i < threads && i < 64; i++)
        if (pthread_create(&thread[i], NULL, roam, (void *)(uintptr_t)(atoi(argv[3]) + i)) != 0)
            return 2;
    for (int i = 0; i < threads && i < 64; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < SLOTS; i += 2) {
        struct block *b = atomic_exchange(&shared.slot[i], NULL);
        if (b)
            end(b);
    }
    printf("found %d\n", found);
    fflush(stdout);
    malloc_stats();
    return 0;
}

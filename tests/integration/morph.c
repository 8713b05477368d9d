// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks whose sizes change in bulk, so that slabs morph: before a fork, in both processes after
// it, and after a kill.
//
// usage: morph forks | until-killed
//
// Exit status 0, or 3 after naming the block that is not as it was stored.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 4000

struct block {
    uint32_t number, size;
    unsigned char bytes[];
};

struct store {
    struct block *block[BLOCKS];
} * store;

static unsigned char byte_of(unsigned i) { return (unsigned char)(i % 250 + 1); }

// Fills the block, then publishes it with one store. A block is freed only when nothing names it.
static void put(unsigned i, uint32_t size) {
    struct block *b = malloc(sizeof *b + size);
    if (!b)
        exit(2);
    *b = (struct block){i, size};
    memset(b->bytes, byte_of(i), size);
    __atomic_store_n(&store->block[i], b, __ATOMIC_RELEASE);
}

static void drop(unsigned i) {
    struct block *b = store->block[i];
    __atomic_store_n(&store->block[i], NULL, __ATOMIC_RELEASE);
    free(b);
}

static void check(void) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        const struct block *b = store->block[i];
        for (uint32_t k = 0; b && k < b->size; k++)
            if (b->number != i || b->bytes[k] != byte_of(i)) {
                printf("block %u at %p is broken\n", i, (const void *)b);
                fflush(stdout);
                _exit(3);
            }
    }
}

static void churn(uint32_t seed, uint32_t from, uint32_t to) {
    for (unsigned round = 0; round < 20000; round++) {
        seed = seed * 1103515245 + 12345;
        unsigned i = (seed >> 8) % BLOCKS;
        if (store->block[i])
            drop(i);
        else if ((seed >> 24) % 3 == 0)
            put(i, from + (seed >> 4) % (to - from));
    }
    check();
}

static void change_sizes(uint32_t first, uint32_t second) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!store->block[i])
            put(i, first);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (i % 9)
            drop(i);
    for (unsigned i = 0; i < BLOCKS; i += 2)
        if (!store->block[i])
            put(i, second);
    check();
}

static void forks(void) {
    change_sizes(1000, 600);
    for (uint32_t n = 0; n < 3; n++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            check();
            churn(n + 1, 30, 2000);
            churn(n + 7, 200, 900);
            exit(0);
        }
        churn(n + 100, 100, 1500);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(1);
        check();
    }
}

int main(int argc, char **argv) {
    if (!store)
        store = calloc(1, sizeof *store);
    check();
    puts("checked");
    fflush(stdout);
    if (argc == 2 && strcmp(argv[1], "forks") == 0)
        forks();
    for (uint32_t n = 0; argc == 2 && strcmp(argv[1], "until-killed") == 0; n++) {
        change_sizes(1000 - n % 3 * 300, 600 + n % 2 * 1000);
        churn(n, 30, 2000);
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Stores to pages of a large heap, for scripts/backup-bench.
//
//   pages MEGABYTES    reads commands from standard input, and answers each with a line
//     touch N          stores to N pages, chosen at random
//     rate N           from now on stores to N pages a second, all the time
//
// A thread computes all the time, so that the process never sleeps as a whole.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, TURNS = 100 }; // turns of the storing thread in a second

char **chunks; // the root: blocks of a megabyte each
static uint64_t pages;
static _Atomic uint64_t rate, sink;

static uint64_t next(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void touch(uint64_t count, uint64_t *seed) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t page = next(seed) % pages;
        *(volatile uint64_t *)(chunks[page / 256] + page % 256 * PAGE) = *seed;
    }
}

static void *compute(void *arg) {
    uint64_t seed = 1;
    for (;;)
        sink += next(&seed);
    return arg;
}

static void *store(void *arg) {
    uint64_t seed = 2;
    const struct timespec pause = {.tv_nsec = 1000000000 / TURNS};
    for (;;) {
        nanosleep(&pause, NULL);
        touch(rate / TURNS, &seed);
    }
    return arg;
}

static void make(uint64_t megabytes) {
    char **made = calloc(megabytes, sizeof *made);
    uint64_t seed = 3;
    for (uint64_t i = 0; i < megabytes; i++) {
        made[i] = malloc(256 * PAGE);
        for (uint64_t at = 0; at < 256 * PAGE; at += 8)
            *(uint64_t *)(void *)(made[i] + at) = next(&seed);
    }
    chunks = made;
}

int main(int argc, char **argv) {
    pthread_t thread;
    char word[16];
    unsigned long number;
    uint64_t megabytes = argc == 2 ? strtoull(argv[1], NULL, 10) : 0, seed = (uint64_t)time(NULL);
    if (!megabytes)
        return 2;
    pages = megabytes * 256;
    if (!chunks)
        make(megabytes);
    pthread_create(&thread, NULL, compute, NULL);
    pthread_create(&thread, NULL, store, NULL);
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %lu", word, &number) == 2) {
        if (strcmp(word, "touch") == 0)
            touch(number, &seed);
        else
            rate = number;
        puts("done");
        fflush(stdout);
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A short life of a program: each of malloc's calls, with small, large and huge blocks, in the
// first thread and in two others. scripts/make-order learns from it what such a life executes.
//
//   life
//
// Prints the number of blocks, which is the same in each run. Status 0, or 1 if memory is short.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 120u

static void *made(void *block) {
    if (!block)
        exit(1);
    return block;
}

static void *small_block(unsigned i) {
    size_t size = ((size_t)1 << i % 12) + i;
    void *block = made(i % 5 ? malloc(size) : calloc(1, size));
    return i % 7 ? block : made(realloc(block, 2 * size));
}

static unsigned small_blocks(void) {
    void *block[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        block[i] = small_block(i);
    for (unsigned i = 0; i < BLOCKS; i++)
        free(block[i]);
    return BLOCKS;
}

// Up to some megabytes.
static unsigned large_blocks(void) {
    unsigned count = 0;
    for (size_t size = 20000; size < (size_t)6 << 20; size *= 3, count++) {
        char *block = made(malloc(size));
        block[0] = 1;
        free(made(realloc(block, size + size / 2)));
    }
    return count;
}

static unsigned aligned_blocks(void) {
    void *block = NULL;
    free(made(aligned_alloc(64, 640)));
    if (posix_memalign(&block, 4096, 8192))
        exit(1);
    free(block);
    return 2;
}

static void *live(void *count) {
    *(unsigned *)count += small_blocks() + large_blocks() + aligned_blocks();
    return NULL;
}

int main(void) {
    unsigned count[3] = {0};
    pthread_t thread[2];
    live(&count[0]);
    for (unsigned i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, live, &count[1 + i]))
            return 1;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    printf("blocks=%u\n", count[0] + count[1] + count[2]);
    return 0;
}

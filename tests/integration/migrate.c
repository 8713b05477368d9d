// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A thread that only hits its cache, and pmalloc_migrate(). Prints the data file of its blocks
// before it has moved and after, by what the call returned.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int pmalloc_migrate(void) __attribute__((weak));

enum { FILE_SHIFT = 40, HITS = 100000, ASKED = 3000 };

// The data file of all blocks of so many requests; -1: they are of several.
static int file_of_blocks(void) {
    int file = -2;
    for (int i = 0; i < HITS; i++) {
        void *volatile p = malloc(64);
        int here = (int)((uintptr_t)p >> FILE_SHIFT & 15);
        file = file == -2 || file == here ? here : -1;
        free(p);
    }
    return file;
}

static void *work(void *arg) {
    int before = file_of_blocks(), asked = 0, moved = 0;
    while (asked++ < ASKED && (moved = pmalloc_migrate()) == 0)
        continue;
    printf("before %d moved %d after %d\n", before, moved, file_of_blocks());
    return arg;
}

int main(void) {
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&thread[i], NULL, work, NULL);
        pthread_join(thread[i], NULL);
    }
    return 0;
}

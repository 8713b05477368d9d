// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Commits of one word each, while a thread sleeps in a call whose result the kernel stores into the
// heap, and many pages are copied that have not changed: those may not be dropped.
//   sleeping_copies sleeps|alone COMMITS      alone: nobody sleeps
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload/pmalloc.h"

enum { PAGES = 1024, PAGE = 4096 };

char *memory; // the root
static int end[2];

static void *sleep_in_a_call(void *buffer) {
    if (read(end[0], buffer, PAGE) < 0)
        abort();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 3)
        return 5;
    if (!memory && !(memory = malloc(PAGES * PAGE)))
        return 1;
    memset(memory, argc, PAGES * PAGE);
    if (pmalloc_commit() != 0)
        return 2;
    // In the heap, and not in the large block.
    if (strcmp(argv[1], "sleeps") == 0 &&
        (pipe(end) != 0 || pthread_create(&thread, NULL, sleep_in_a_call, malloc(PAGE)) != 0))
        return 3;
    usleep(50000); // it sleeps by then
    for (int i = 0; i < atoi(argv[2]); i++) {
        for (int page = 0; page < PAGES; page++)
            *(volatile char *)&memory[page * PAGE] = memory[page * PAGE]; // the same
        memory[1] = (char)i;
        if (pmalloc_commit() != 0)
            return 4;
    }
    _exit(0);
}

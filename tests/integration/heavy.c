// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process that the kernel needs long to end, because it has much memory in small pages.
//
//   heavy         ends at once
//   heavy stay    touches its memory, prints "ready", and waits to be killed
//   heavy leave   ends its first thread while another one waits
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES ((size_t)384 << 20)

void *found; // a root

static void *stay(void *unused) {
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv) {
    found = malloc(100);
    if (argc < 2)
        return 0;
    if (strcmp(argv[1], "leave") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, stay, NULL);
        pthread_exit(NULL);
    }
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    madvise(memory, BYTES, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < BYTES; at += 4096)
        memory[at] = 1;
    stay(NULL);
}

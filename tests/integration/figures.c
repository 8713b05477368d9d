// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Reads orders from standard input, carries them out, and prints the allocator's own figures:
// "small COUNT SIZE", "large COUNT SIZE", "free", "threads COUNT" (each thread allocates, frees
// half, and waits), "join", "info", "xml", "stats", "trim". It allocates nothing else between two
// figures.
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 100000, THREADS = 32 };

static struct {
    void *block[BLOCKS];
    int count;
} held; // a root

static pthread_t thread[THREADS];
static pthread_barrier_t barrier;
static int threads;

static void *work(void *arg) {
    void *block[500];
    (void)arg;
    for (int i = 0; i < 500; i++)
        block[i] = malloc((size_t)(i * 7 % 3000));
    for (int i = 0; i < 500; i += 2)
        free(block[i]);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 1; i < 500; i += 2)
        free(block[i]);
    return NULL;
}

static void put_info(void) {
    struct mallinfo2 m = mallinfo2();
    struct mallinfo n = mallinfo();
    printf("{\"arena\": %zu, \"ordblks\": %zu, \"hblks\": %zu, \"hblkhd\": %zu, \"uordblks\": %zu, "
           "\"fordblks\": %zu, \"fsmblks\": %zu, \"keepcost\": %zu, \"old_arena\": %d}\n",
           m.arena, m.ordblks, m.hblks, m.hblkhd, m.uordblks, m.fordblks, m.fsmblks, m.keepcost,
           n.arena);
}

static void obey(const char *word, size_t count, size_t size) {
    if (!strcmp(word, "small") || !strcmp(word, "large")) {
        for (size_t i = 0; i < count && held.count < BLOCKS; i++)
            held.block[held.count++] = malloc(size);
    } else if (!strcmp(word, "free")) {
        while (held.count)
            free(held.block[--held.count]);
    } else if (!strcmp(word, "threads")) {
        threads = (int)count;
        pthread_barrier_init(&barrier, NULL, (unsigned)count + 1);
        for (int i = 0; i < threads; i++)
            pthread_create(&thread[i], NULL, work, NULL);
        pthread_barrier_wait(&barrier);
    } else if (!strcmp(word, "join")) {
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < threads; i++)
            pthread_join(thread[i], NULL);
    } else if (!strcmp(word, "info")) {
        put_info();
    } else if (!strcmp(word, "xml")) {
        malloc_info(0, stdout);
    } else if (!strcmp(word, "stats")) {
        malloc_stats();
    } else if (!strcmp(word, "trim")) {
        malloc_trim(0);
    } else {
        exit(2);
    }
}

int main(void) {
    static char in[4096], out[8192];
    char line[100], word[20];
    setvbuf(stdin, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    while (fgets(line, sizeof line, stdin)) {
        size_t count = 0, size = 0;
        if (sscanf(line, "%19s %zu %zu", word, &count, &size) < 1)
            return 2;
        obey(word, count, size);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}

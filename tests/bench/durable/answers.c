// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Answers beside sections, for scripts/section-bench --answers: one thread says numbers into a
// pipe, the others change two numbers under one of four locks all the time.
//
//   answers THREADS SECONDS     prints answers and sections a second
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LOCKS = 4, MOST = 64 };

struct store {
    volatile long a[LOCKS], b[LOCKS];
    long said;
};
struct store *root;

static pthread_mutex_t mutex[LOCKS];
static _Atomic int over;
static _Atomic long sections;

static void burn(void) {
    for (volatile int i = 0; i < 3000; i++) {
    }
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(size_t)arg + 1;
    long count = 0;
    for (; !over; count++) {
        seed = seed * 1103515245 + 12345;
        unsigned i = seed >> 16 & (LOCKS - 1);
        pthread_mutex_lock(&mutex[i]);
        root->a[i]++;
        burn();
        root->b[i]++;
        pthread_mutex_unlock(&mutex[i]);
        burn();
    }
    sections += count;
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Somebody has to read what is said.
static int make_listener(void) {
    int ends[2];
    char text[4096];
    if (pipe(ends) != 0)
        exit(1);
    if (fork() == 0) {
        close(ends[1]);
        while (read(ends[0], text, sizeof text) > 0) {
        }
        _exit(0);
    }
    close(ends[0]);
    return ends[1];
}

int main(int argc, char **argv) {
    int threads = argc == 3 ? atoi(argv[1]) : 0, to = make_listener();
    pthread_t id[MOST];
    char text[32];
    if (threads < 1 || threads > MOST)
        return 2;
    root = calloc(1, sizeof *root);
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&mutex[i], NULL);
    for (int i = 1; i < threads; i++)
        pthread_create(&id[i], NULL, work, (void *)(size_t)i);
    double since = now(), until = since + atof(argv[2]);
    while (now() < until) {
        int len = snprintf(text, sizeof text, "%ld\n", ++root->said);
        if (write(to, text, (size_t)len) != len)
            return 1;
    }
    over = 1;
    for (int i = 1; i < threads; i++)
        pthread_join(id[i], NULL);
    printf("%.0f %.0f\n", (double)root->said / (now() - since), (double)sections / (now() - since));
    return 0;
}

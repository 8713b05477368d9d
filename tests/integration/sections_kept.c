// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
//   sections_kept        takes a mutex that it never gives back, as a server does whose extensions
//                        share one lock; works while the first commits are tried; then counts the
//                        lines that it reads, and repeats each
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct store {
    pthread_mutex_t mutex;
    long lines;
};
struct store *root;

static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void *sleeps(void *unused) {
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&own);
    for (;;)
        pthread_cond_wait(&never, &own);
    return unused;
}

int main(void) {
    char line[64];
    pthread_t id;
    if (!root)
        root = calloc(1, sizeof *root);
    else
        fprintf(stderr, "%ld lines\n", root->lines);
    if (pthread_create(&id, NULL, sleeps, NULL) != 0)
        return 1;
    pthread_mutex_lock(&all);
    for (double begun = now(); now() - begun < 0.2;)
        root->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (ssize_t len; (len = read(0, line, sizeof line)) > 0; root->lines++)
        if (write(1, line, (size_t)len) != len)
            return 1;
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// flood SECONDS: four threads add notes to a list for so long, as fast as they can, also where
// there is no room. It prints how many were added. Without an argument it prints how many there
// are.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOTE 4000

struct note {
    struct note *next;
    char text[NOTE];
};

struct note *newest; // the root
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double until;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *add(void *arg) {
    unsigned long *count = arg;
    while (now() < until) {
        struct note *n = malloc(sizeof *n);
        if (!n)
            continue;
        memset(n->text, 'x', NOTE);
        pthread_mutex_lock(&lock);
        n->next = newest;
        newest = n;
        pthread_mutex_unlock(&lock);
        ++*count;
    }
    return NULL;
}

int main(int argc, char **argv) {
    static unsigned long counts[4];
    static pthread_t thread[4];
    unsigned long notes = 0;
    until = now() + (argc > 1 ? atof(argv[1]) : 0);
    for (int i = 0; i < 4 && argc > 1; i++)
        pthread_create(&thread[i], NULL, add, &counts[i]);
    for (int i = 0; i < 4 && argc > 1; i++)
        pthread_join(thread[i], NULL);
    for (const struct note *n = newest; n; n = n->next)
        notes++;
    printf("%lu\n", notes);
    fflush(stdout);
    if (argc > 1)
        getchar();
    return 0;
}

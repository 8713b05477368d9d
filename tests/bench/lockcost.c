// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// preload/names/locks.c looks at each lock before it is taken. This measures what that costs:
// nanoseconds for taking and releasing a lock that no other thread uses.
//
//   lockcost mutex|rwlock|spin static|heap COUNT
//
// It uses COUNT locks in turn. Locks in the heap are kept from run to run with PMALLOC_ROOTS=kept.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 65536
#define PAIRS 100000

union lock {
    pthread_mutex_t mutex;
    pthread_rwlock_t rwlock;
    pthread_spinlock_t spin;
    char line[64];
};

union lock *kept;
static union lock fixed[MOST];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

#define RUN(take, give)                                                                            \
    for (unsigned long i = 0; i < PAIRS; i++) {                                                    \
        union lock *l = &locks[i * 40503 % count];                                                 \
        take;                                                                                      \
        give;                                                                                      \
    }

int main(int argc, char **argv) {
    if (argc != 4)
        return 16;
    unsigned long count = strtoul(argv[3], NULL, 10);
    if (count < 1 || count > MOST)
        return 16;
    int spin = strcmp(argv[1], "spin") == 0; // a free spinlock need not be zero
    for (unsigned long i = 0; spin && i < MOST; i++)
        pthread_spin_init(&fixed[i].spin, 0);
    if (!kept) {
        kept = calloc(MOST, sizeof *kept);
        if (!kept)
            return 1;
        for (unsigned long i = 0; spin && i < MOST; i++)
            pthread_spin_init(&kept[i].spin, 0);
    }
    union lock *locks = strcmp(argv[2], "heap") == 0 ? kept : fixed;
    double best = 0;
    // the best of many short rounds, because the machine is shared
    for (int round = 0; round < 60; round++) {
        double from = now();
        if (strcmp(argv[1], "mutex") == 0)
            RUN(pthread_mutex_lock(&l->mutex), pthread_mutex_unlock(&l->mutex))
        else if (strcmp(argv[1], "rwlock") == 0)
            RUN(pthread_rwlock_rdlock(&l->rwlock), pthread_rwlock_unlock(&l->rwlock))
        else
            RUN(pthread_spin_lock(&l->spin), pthread_spin_unlock(&l->spin))
        double took = (now() - from) / PAIRS;
        if (!best || took < best)
            best = took;
    }
    printf("%.2f\n", best);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Every kind of lock, in the heap and in a root.
#ifndef PMALLOC_TESTS_INTEGRATION_LOCKS_H
#define PMALLOC_TESTS_INTEGRATION_LOCKS_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define THREADS 8
#define RACES 500

enum { NORMAL, RECURSIVE, ERRORCHECK, ADAPTIVE, SHARED, ROBUST, INHERIT, PROTECT, MUTEXES };

struct pair {
    volatile uint64_t a, b;
};

struct locks {
    pthread_mutex_t mutex[MUTEXES];
    pthread_rwlock_t rwlock;
    pthread_spinlock_t spin;
    mtx_t mtx;
    sem_t sem;
    pthread_cond_t cond;
    cnd_t cnd;
    pthread_mutex_t cond_mutex;
    pthread_barrier_t barrier;
    pthread_once_t once;
    once_flag flag;
    uint64_t tokens, once_runs;
    struct pair pair[MUTEXES + 4];
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != 0) {                                                                        \
            printf("%s: %s\n", #call, strerror(status_));                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// Kills the process.
void die(void);

// locks_objects.c: brings the object of that name in `at` into use, or tries and then uses it.
extern struct locks *at;
void one(int hold, const char *object);

#endif

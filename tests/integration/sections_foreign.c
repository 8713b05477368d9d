// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that change pairs of numbers under locks that are not libc's, as sections.c. Built with
// -fopenmp and -fgnu-tm, and with GLib.
//
//   sections_foreign KIND     g_mutex, g_bit, g_cond, omp, critical, nest, transaction, own,
//                             semaphore, or held: a semaphore that is taken, and not given back
#include <omp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sections_pair.h"

void g_mutex_lock(void *mutex);
int g_mutex_trylock(void *mutex);
void g_mutex_unlock(void *mutex);
void g_cond_wait(void *cond, void *mutex);
void g_cond_broadcast(void *cond);
void g_bit_lock(volatile int *word, int bit);
void g_bit_unlock(volatile int *word, int bit);
void pmalloc_begin(void) __attribute__((weak));
void pmalloc_end(void) __attribute__((weak));

// As GLib has them: it counts in `i`.
struct g_cond {
    void *p;
    unsigned i[2];
};

struct store {
    long a, b, said;
    void *mutex;
    struct g_cond cond;
    int bits;
    omp_lock_t omp;
    omp_nest_lock_t nest;
    sem_t semaphore, other;
};
struct store *root;

static atomic_flag own = ATOMIC_FLAG_INIT;

__attribute__((noinline)) static void burn(void) {
    for (volatile unsigned i = 0; i < 2000; i++) {
    }
}

static void change(void) {
    *(volatile long *)&root->a += 1;
    burn();
    *(volatile long *)&root->b += 1;
}

__attribute__((transaction_safe, noinline)) static long rounds(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i ^ (sum << 1);
    return sum;
}

static void transact(void) {
    __transaction_atomic {
        root->a++;
        root->said += rounds(2000) == 1;
        root->b++;
    }
    __transaction_atomic {
        root->a++;
        if (rounds(500) != 1)
            __transaction_cancel;
        root->b++;
    }
}

static void in_own(void) {
    if (pmalloc_begin)
        pmalloc_begin();
    while (atomic_flag_test_and_set(&own)) {
    }
    change();
    atomic_flag_clear(&own);
    if (pmalloc_end)
        pmalloc_end();
}

// One that waits for the second has done half.
static void by_semaphores(void) {
    if (sem_trywait(&root->semaphore) != 0 && sem_wait(&root->semaphore) != 0)
        return;
    *(volatile long *)&root->a += 1;
    burn();
    while (sem_wait(&root->other) != 0) {
    }
    *(volatile long *)&root->b += 1;
    sem_post(&root->other);
    sem_post(&root->semaphore);
}

static void once(const char *kind) {
    if (strcmp(kind, "g_mutex") == 0) {
        while (!g_mutex_trylock(&root->mutex))
            burn();
        change();
        g_mutex_unlock(&root->mutex);
    } else if (strcmp(kind, "g_cond") == 0) {
        g_mutex_lock(&root->mutex);
        change();
        g_cond_broadcast(&root->cond);
        g_cond_wait(&root->cond, &root->mutex);
        change();
        g_mutex_unlock(&root->mutex);
        g_cond_broadcast(&root->cond);
    } else if (strcmp(kind, "g_bit") == 0) {
        g_bit_lock(&root->bits, 7);
        change();
        g_bit_unlock(&root->bits, 7);
    } else if (strcmp(kind, "omp") == 0) {
        omp_set_lock(&root->omp);
        change();
        omp_unset_lock(&root->omp);
    } else if (strcmp(kind, "nest") == 0) {
        omp_set_nest_lock(&root->nest);
        omp_set_nest_lock(&root->nest);
        change();
        omp_unset_nest_lock(&root->nest);
        burn();
        omp_unset_nest_lock(&root->nest);
    } else if (strcmp(kind, "critical") == 0) {
#pragma omp critical
        change();
#pragma omp critical(named)
        burn();
    } else if (strcmp(kind, "transaction") == 0) {
        transact();
    } else if (strcmp(kind, "semaphore") == 0) {
        by_semaphores();
    } else {
        in_own();
    }
}

static void *work(void *kind) {
    for (;;) {
        once(kind);
        burn();
    }
    return NULL;
}

// g_cond_wait() needs somebody who wakes the others.
static void *wake(void *unused) {
    (void)unused;
    for (;;) {
        usleep(100);
        g_cond_broadcast(&root->cond);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t id;
    if (argc != 2)
        return 16;
    if (!root) {
        root = calloc(1, sizeof *root);
        omp_init_lock(&root->omp);
        sem_init(&root->semaphore, 0, 1);
        sem_init(&root->other, 0, 1);
    } else if (strcmp(argv[1], "held") == 0) {
        fprintf(stderr, sem_trywait(&root->semaphore) == 0 ? "free\n" : "held\n");
    } else {
        say_pair(root->a, root->b);
    }
    omp_init_nest_lock(&root->nest); // not freed by the next run
    root->cond = (struct g_cond){0};
    if (strcmp(argv[1], "held") == 0)
        sem_trywait(&root->semaphore);
    for (int i = 0; i < 2 && strcmp(argv[1], "held") != 0; i++)
        if (pthread_create(&id, NULL, work, argv[1]) != 0)
            return 1;
    if (pthread_create(&id, NULL, wake, NULL) != 0)
        return 1;
    return answer_for_ever();
}

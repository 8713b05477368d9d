// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "schedule.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>

#include "world.h"

static struct thread {
    sem_t turn;
    pthread_t id;
    void (*fn)(void *);
    void *arg;
    bool alive;
} threads[THREADS];
static unsigned alive = 1, running;
static __thread unsigned self;
static uint64_t random_state;
static pthread_key_t last_key;

unsigned schedule_self(void) { return self; }

static void hand_over_to(unsigned next) {
    running = next;
    sem_post(&threads[next].turn);
}

static unsigned pick(void) {
    unsigned next;
    do
        next = (unsigned)draw(&random_state, THREADS);
    while (!threads[next].alive || (next == self && alive > 1));
    return next;
}

void schedule_yield(void) {
    if (alive < 2)
        return;
    hand_over_to(pick());
    while (sem_wait(&threads[self].turn) != 0) {
    }
}

void schedule_point(void) {
    if (alive > 1 && draw(&random_state, 12) == 0)
        schedule_yield();
}

// The last destructor of a thread: it runs once more after all others, also after the allocator's,
// whichever key was made first.
static void ended(void *value) {
    static char once_more;
    if (value != &once_more) {
        pthread_setspecific(last_key, &once_more);
        return;
    }
    threads[self].alive = false;
    alive--;
    hand_over_to(pick());
}

static void *body(void *arg) {
    struct thread *t = arg;
    self = (unsigned)(t - threads);
    while (sem_wait(&t->turn) != 0) {
    }
    pthread_setspecific(last_key, t);
    t->fn(t->arg);
    return NULL;
}

void schedule_start(void (*fn)(void *arg), void *arg) {
    static bool begun;
    if (!begun) {
        begun = true;
        random_state = world->seed ^ 0x5eed;
        threads[0].alive = true;
        pthread_key_create(&last_key, ended);
        for (unsigned i = 0; i < THREADS; i++)
            sem_init(&threads[i].turn, 0, 0);
    }
    unsigned i = 1;
    while (i < THREADS && threads[i].id)
        i++;
    if (i == THREADS)
        abort();
    threads[i].fn = fn;
    threads[i].arg = arg;
    if (pthread_create(&threads[i].id, NULL, body, &threads[i]) != 0)
        abort();
    threads[i].alive = true;
    alive++;
}

void schedule_join(void) {
    while (alive > 1)
        schedule_yield();
    for (unsigned i = 1; i < THREADS; i++)
        if (threads[i].id) {
            pthread_join(threads[i].id, NULL);
            threads[i].id = 0;
        }
}

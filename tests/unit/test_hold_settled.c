// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Threads that sleep from hold to hold are not looked at in /proc again. What they do meanwhile is
// seen all the same: a signal handler that runs, an end, another thread in the place of one.
#include "threads/hold.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "threads/calls.h"

#define SLEEPERS 5
#define HOLDS 20

static _Atomic unsigned long counter;
static _Atomic bool handles, over;
static sem_t go;

static void *sleep_long(void *unused) {
    (void)unused;
    struct pm_call call = {.memory = {{&go, sizeof go}}, .by_futex = true};
    pm_call_enter(&call);
    while (sem_wait(&go) != 0) {
    }
    pm_call_leave(&call);
    return NULL;
}

static void *count(void *unused) {
    while (!over)
        counter++;
    return unused;
}

static void count_in_handler(int unused) {
    (void)unused;
    while (handles)
        counter++;
}

// Whether memory stands still in a hold.
static bool stands_still(void) {
    bool held = pm_hold_all(10000);
    unsigned long before = counter;
    CHECK(held);
    for (int i = 0; i < 2000; i++)
        getppid();
    bool still = counter == before;
    if (held)
        pm_release_all();
    return still;
}

static void await_count(void) {
    unsigned long before = counter;
    while (counter == before)
        sched_yield();
}

static void settle(void) {
    for (int i = 0; i < 5; i++)
        CHECK(stands_still());
}

// A handler runs in a sleeper, for a while and again.
static void test_handler(void) {
    pthread_t thread[SLEEPERS];
    signal(SIGUSR1, count_in_handler);
    for (int i = 0; i < SLEEPERS; i++)
        pthread_create(&thread[i], NULL, sleep_long, NULL);
    settle();
    for (int i = 0; i < HOLDS; i++) {
        handles = true;
        pthread_kill(thread[i % SLEEPERS], SIGUSR1);
        await_count();
        CHECK(stands_still());
        await_count();
        CHECK(stands_still());
        handles = false;
        settle();
    }
    for (int i = 0; i < SLEEPERS; i++)
        sem_post(&go);
    for (int i = 0; i < SLEEPERS; i++)
        pthread_join(thread[i], NULL);
}

// Sleepers end, and as many threads that run begin: there are as many threads as before.
static void test_others_in_their_place(void) {
    pthread_t thread[2 * SLEEPERS];
    for (int i = 0; i < SLEEPERS; i++)
        pthread_create(&thread[i], NULL, sleep_long, NULL);
    settle();
    for (int i = 0; i < SLEEPERS; i++) {
        sem_post(&go); // any of them
        pthread_t other;
        pthread_create(&other, NULL, count, NULL);
        await_count();
        CHECK(stands_still());
        over = true;
        pthread_join(other, NULL);
        over = false;
        pthread_create(&thread[SLEEPERS + i], NULL, sleep_long, NULL);
        CHECK(stands_still());
    }
    for (int i = 0; i < SLEEPERS; i++)
        sem_post(&go);
    for (int i = 0; i < 2 * SLEEPERS; i++) // none is left for the next test to find
        pthread_join(thread[i], NULL);
}

// One more thread than before, and it runs.
static void test_one_more(void) {
    pthread_t thread, other;
    pthread_create(&thread, NULL, sleep_long, NULL);
    for (int i = 0; i < HOLDS; i++) {
        settle();
        pthread_create(&other, NULL, count, NULL);
        await_count();
        CHECK(stands_still());
        over = true;
        pthread_join(other, NULL);
        over = false;
    }
    sem_post(&go);
    pthread_join(thread, NULL);
}

static void find(void *at, size_t len, void *found) {
    *(unsigned *)found += at == &go && len == sizeof go;
}

static unsigned sleepers_found(void) {
    unsigned found = 0;
    CHECK(pm_hold_all(10000));
    pm_hold_each_memory(find, &found);
    pm_release_all();
    return found;
}

// What a sleeper's call may store is told of in each hold.
static void test_memory_of_sleepers(void) {
    pthread_t thread[SLEEPERS];
    for (int i = 0; i < SLEEPERS; i++)
        pthread_create(&thread[i], NULL, sleep_long, NULL);
    for (int i = 0; i < 100000 && sleepers_found() != SLEEPERS; i++)
        sched_yield();
    for (int i = 0; i < HOLDS; i++)
        CHECK_EQ(sleepers_found(), SLEEPERS);
    for (int i = 0; i < SLEEPERS; i++)
        sem_post(&go);
    for (int i = 0; i < SLEEPERS; i++)
        pthread_join(thread[i], NULL);
}

int main(void) {
    CHECK(pm_hold_prepare());
    sem_init(&go, 0, 0);
    RUN(handler);
    RUN(others_in_their_place);
    RUN(one_more);
    RUN(memory_of_sleepers);
    return CHECK_DONE();
}

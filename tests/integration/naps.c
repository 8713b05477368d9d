// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that sleep.
//
//   naps ends    main calls exit(7) meanwhile: no thread wakes up; status 1: one does
//   naps woken   a handler of the program's wakes each one, with what is left of its time
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define LONG 100
#define WAYS 5

char *root;
static atomic_uint asleep;

// How many of its seconds are left, about; usleep() does not tell.
static long nap(unsigned way) {
    struct timespec time = {.tv_sec = LONG}, rest = {0}, until;
    switch (way) {
    case 0:
        return sleep(LONG);
    case 1:
        return usleep(LONG * 1000000u) == -1 && errno == EINTR ? LONG - 1 : 0;
    case 2:
        return nanosleep(&time, &rest) == -1 && errno == EINTR ? rest.tv_sec : 0;
    case 3:
        return thrd_sleep(&time, &rest) == -1 ? rest.tv_sec : 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LONG;
    if (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, &rest) != EINTR || rest.tv_sec)
        return 0;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &rest) == EINTR ? rest.tv_sec : 0;
}

static void *never_wakes(void *way) {
    asleep++;
    nap((unsigned)(size_t)way);
    _exit(1);
    return way;
}

static void *wakes(void *way) {
    long left = nap((unsigned)(size_t)way);
    asleep++;
    return (void *)(size_t)(left > 0 && left < LONG);
}

static void hears(int number) { (void)number; }

static int ends(void) {
    pthread_t thread;
    for (size_t way = 0; way < WAYS; way++)
        pthread_create(&thread, NULL, never_wakes, (void *)way);
    while (asleep < WAYS)
        sched_yield();
    usleep(20000); // they sleep now, or soon
    exit(7);
}

static int woken(void) {
    struct sigaction action = {.sa_handler = hears};
    sigaction(SIGUSR1, &action, NULL);
    for (size_t way = 0; way < WAYS; way++) {
        pthread_t thread;
        void *right = NULL;
        unsigned before = asleep;
        pthread_create(&thread, NULL, wakes, (void *)way);
        while (asleep == before) {
            usleep(1000);
            pthread_kill(thread, SIGUSR1);
        }
        pthread_join(thread, &right);
        if (!right)
            printf("way %zu is wrong\n", way);
    }
    puts("right");
    return 0;
}

int main(int argc, char **argv) {
    root = malloc(1000);
    memset(root, 1, 1000);
    return argc > 1 && strcmp(argv[1], "ends") == 0 ? ends() : woken();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How long commits stop a program, for scripts/commit-bench.
//
//   pauses MEBIBYTES RATE SECONDS    one thread stores to RATE random pages a second (0: as fast as
//                                    it can), another looks at the clock all the time
//   pauses MEBIBYTES once SECONDS    the first one changes each page once, as fast as it can
//   pauses MEBIBYTES few:N SECONDS   it changes the same N pages every millisecond
//   pauses MEBIBYTES rest SECONDS    the first one has changed each page, and answers requests of
//                                    the other, each by a store: both wait in between (idle)
//   pauses check                     a later run: the sum of what all pages count
//
// Says `longest=MICROSECONDS stores=N sum=N`: the longest time between two looks at the clock, or
// for an answer; how many stores there were in that time, and in all.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 256, TURN = 256, WARM = 1500000 }; // pages; stores; microseconds

struct {
    uint64_t pages;
    char **chunk;
} memory; // the root
static uint64_t rate, few;
static bool once;
static _Atomic bool over;
static _Atomic uint64_t stores;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t *word(uint64_t page) {
    return (uint64_t *)(void *)(memory.chunk[page / CHUNK] + page % CHUNK * PAGE);
}

static void change(uint64_t pages) {
    for (uint64_t page = 0; page < pages; page++)
        ++*word(page);
    atomic_fetch_add(&stores, pages);
}

static void *store(void *unused) {
    uint64_t seed = 1, start = now();
    (void)unused;
    if (once)
        change(memory.pages);
    for (; few && !over; nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL))
        change(few);
    if (once || few)
        return NULL;
    while (!over) {
        for (unsigned i = 0; i < TURN; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ++*word((seed >> 33) % memory.pages);
        }
        uint64_t made = atomic_fetch_add(&stores, TURN) + TURN, at = now();
        uint64_t due = rate ? start + made * 1000000 / rate : 0;
        if (due > at)
            nanosleep(&(struct timespec){.tv_nsec = (long)(due - at) * 1000 % 999999999}, NULL);
    }
    return NULL;
}

static uint64_t longest_of(uint64_t time) {
    uint64_t longest = 0, last = now();
    for (uint64_t end = last + time, at; (at = now()) < end; last = at)
        longest = at - last > longest ? at - last : longest;
    return longest;
}

static int request[2], answer[2];

static void *serve(void *unused) {
    uint64_t page;
    (void)unused;
    change(memory.pages);
    page = now();
    (void)!write(answer[1], &page, sizeof page);
    while (read(request[0], &page, sizeof page) == sizeof page && page < memory.pages) {
        ++*word(page);
        atomic_fetch_add(&stores, 1);
        (void)!write(answer[1], &page, sizeof page);
    }
    return NULL;
}

// The client's rests, too: commits fall there.
static uint64_t longest_answer(uint64_t time) {
    uint64_t longest = 0, last, page = 0, same;
    (void)!read(answer[0], &last, sizeof last); // when all pages had changed
    for (uint64_t end = now() + time, at; (at = now()) < end; last = at) {
        longest = at - last > longest ? at - last : longest;
        (void)!write(request[1], &page, sizeof page);
        (void)!read(answer[0], &same, sizeof same);
        page = (page + 7919) % memory.pages;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return longest;
}

static int rest(double seconds) {
    pthread_t thread;
    if (pipe(request) || pipe(answer) || pthread_create(&thread, NULL, serve, NULL))
        return 2;
    uint64_t longest = longest_answer((uint64_t)(seconds * 1e6));
    printf("longest=%llu stores=%llu", (unsigned long long)longest,
           (unsigned long long)(stores - memory.pages));
    close(request[1]);
    pthread_join(thread, NULL);
    return 0;
}

static void make(uint64_t pages) {
    char **chunk = calloc(pages / CHUNK, sizeof *chunk);
    for (uint64_t i = 0; i < pages / CHUNK; i++) {
        chunk[i] = malloc(CHUNK * PAGE);
        memset(chunk[i], 0, CHUNK * PAGE);
    }
    memory.chunk = chunk;
    memory.pages = pages;
}

static uint64_t sum(void) {
    uint64_t all = 0;
    for (uint64_t page = 0; page < memory.pages; page++)
        all += *word(page);
    return all;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc == 2) {
        printf("sum=%llu\n", (unsigned long long)sum());
        return 0;
    }
    if (argc != 4)
        return 2;
    make(strtoull(argv[1], NULL, 10) * CHUNK);
    if (!strcmp(argv[2], "rest")) {
        int status = rest(atof(argv[3]));
        printf(" sum=%llu\n", (unsigned long long)sum());
        return status;
    }
    rate = strtoull(argv[2], NULL, 10);
    once = !strcmp(argv[2], "once");
    few = strncmp(argv[2], "few:", 4) ? 0 : strtoull(argv[2] + 4, NULL, 10);
    if (!once)
        pthread_create(&thread, NULL, store, NULL);
    longest_of(WARM);
    if (once)
        pthread_create(&thread, NULL, store, NULL);
    uint64_t before = stores, longest = longest_of((uint64_t)(atof(argv[3]) * 1e6));
    uint64_t made = stores - before;
    over = true;
    pthread_join(thread, NULL);
    printf("longest=%llu stores=%llu sum=%llu\n", (unsigned long long)longest,
           (unsigned long long)made, (unsigned long long)sum());
    return 0;
}

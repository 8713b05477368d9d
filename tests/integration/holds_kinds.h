// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Each thread sleeps in one kind of call, again and again, while all threads are held thousands of
// times. No call fails with EINTR, no timeout ends early, none lasts for ever.
#ifndef PMALLOC_TESTS_HOLDS_KINDS_H
#define PMALLOC_TESTS_HOLDS_KINDS_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/time.h>

#include "holds.h"

#define MS 70
#define LATE 10.0 // seconds; a timeout that begins anew after each hold never ends

static const struct timespec rest = {0, MS * 1000000L};
static const struct timeval rest_val = {0, MS * 1000};

static struct timespec at(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += MS * 1000000L;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

struct later {
    pthread_t thread;
    void (*run)(int id);
    int id;
};

static void *run_later(void *arg) {
    struct later *later = arg;
    struct timespec left = rest;
    REQUIRE(nanosleep(&left, NULL) == 0);
    later->run(later->id);
    return NULL;
}

static void begin_later(struct later *later, void (*run)(int id), int id) {
    *later = (struct later){.run = run, .id = id};
    REQUIRE(pthread_create(&later->thread, NULL, run_later, later) == 0);
}

struct kind {
    const char *name;
    void (*run)(void);
    bool may_be_early; // the call may end for no reason, as its contract says
};
#define CALL(name)                                                                                 \
    { #name, in_##name, false }
#define CALL_EARLY(name)                                                                           \
    { #name, in_##name, true }

#define KINDS_MAX 64
static double end;
static unsigned rounds[KINDS_MAX];
static const struct kind *first_kind;

static void *repeat(void *arg) {
    const struct kind *kind = arg;
    while (now() < end) {
        double begin = now();
        kind->run();
        double took = now() - begin;
        if (took < MS / 1000.0 && !kind->may_be_early) {
            fprintf(stderr, "%s ended early, after %f s\n", kind->name, took);
            abort();
        }
        if (took > LATE) {
            fprintf(stderr, "%s ended late, after %f s\n", kind->name, took);
            abort();
        }
        rounds[kind - first_kind]++;
    }
    return NULL;
}

// Arguments: SECONDS, [NAME].
static int run_kinds(int argc, char **argv, const struct kind *kinds, size_t count) {
    pthread_t thread[KINDS_MAX];
    bool chosen[KINDS_MAX] = {0};
    REQUIRE(argc >= 2 && count <= KINDS_MAX);
    first_kind = kinds;
    end = now() + atof(argv[1]);
    for (size_t i = 0; i < count; i++) {
        chosen[i] = argc < 3 || !*argv[2] || strcmp(argv[2], kinds[i].name) == 0;
        if (chosen[i])
            REQUIRE(pthread_create(&thread[i], NULL, repeat, (void *)&kinds[i]) == 0);
    }
    for (size_t i = 0; i < count; i++) {
        if (chosen[i])
            pthread_join(thread[i], NULL);
        if (chosen[i] && !rounds[i])
            printf("never: %s\n", kinds[i].name);
    }
    printf("%u\n", &holder_held ? holder_held : 0);
    return 0;
}

#endif

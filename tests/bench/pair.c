// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Takes one path through the allocator COUNT times and does nothing else; scripts/counters counts
// its instructions. The first rounds warm the caches. So two runs with different COUNT differ only
// in how often they take the path. Several COUNTs are run in turn, each by a call of counted(), so
// that callgrind can tell them apart in one run. With "loop-" before the mode, the loop runs
// without the calls, and its cost can be subtracted.
//   pair MODE COUNT[,COUNT]... SIZE [DEPTH]      DEPTH blocks are in use at a time
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 4096, WARM_UP = 10000 };

// Makes the compiler believe that the pointer is used. Otherwise it drops the call.
#define USE(p) __asm__ volatile("" : "+r"(p) : : "memory")

static void *held[DEPTH_LIMIT];
static unsigned depth = 1;
static size_t size;
static bool calls = true;

// Inlined once with calls and once without. The loop without calls is what remains of the other
// loop when its calls are taken away, so its cost can be subtracted. The Makefile keeps compilers
// from unrolling one of the two.
#define LOOP static inline __attribute__((always_inline)) void

LOOP loop_malloc(unsigned long count, size_t bytes, bool call) {
    for (unsigned long i = 0; i < count; i++) {
        void *p = call ? malloc(bytes) : NULL;
        USE(p);
        if (call)
            free(p);
    }
}

// As in pmalloc.h.
void *pmalloc_alloc(size_t bytes, size_t align, unsigned flags) __attribute__((weak));
enum { POINTER_FREE = 4, PINNED = 8 };

// Without flags, malloc's.
LOOP loop_held(unsigned long count, size_t bytes, bool call, unsigned flags) {
    for (unsigned long done = 0; done < count; done += depth) {
        for (unsigned i = 0; i < depth; i++) {
            void *p = !call ? NULL : flags ? pmalloc_alloc(bytes, 0, flags) : malloc(bytes);
            USE(p);
            held[i] = p;
        }
        for (unsigned i = 0; i < depth; i++) {
            void *p = held[i];
            USE(p);
            if (call)
                free(p);
        }
    }
}

LOOP loop_calloc(unsigned long count, size_t bytes, bool call) {
    for (unsigned long i = 0; i < count; i++) {
        void *p = call ? calloc(1, bytes) : NULL;
        USE(p);
        if (call)
            free(p);
    }
}

// Reallocates between two sizes of one class, so nothing has to move.
// A program that has asked for little has no heap of its own yet.
LOOP loop_realloc(unsigned long count, size_t bytes, bool call) {
    void *p = malloc(1 << 20);
    USE(p);
    free(p);
    p = malloc(bytes);
    for (unsigned long i = 0; i < count; i++) {
        p = call ? realloc(p, bytes - i % 2) : p;
        USE(p);
    }
    free(p);
}

static void run_malloc(unsigned long count) {
    if (depth == 1)
        calls ? loop_malloc(count, size, true) : loop_malloc(count, size, false);
    else
        calls ? loop_held(count, size, true, 0) : loop_held(count, size, false, 0);
}

static void run_calloc(unsigned long count) {
    calls ? loop_calloc(count, size, true) : loop_calloc(count, size, false);
}

static void run_realloc(unsigned long count) {
    calls ? loop_realloc(count, size, true) : loop_realloc(count, size, false);
}

static void run_pointer_free(unsigned long count) {
    calls ? loop_held(count, size, true, POINTER_FREE) : loop_held(count, size, false, 0);
}

static void run_pinned(unsigned long count) {
    calls ? loop_held(count, size, true, PINNED) : loop_held(count, size, false, 0);
}

// Frees one of DEPTH blocks, which one is as at random, and allocates another in its place.
LOOP loop_churn(unsigned long count, size_t bytes, bool call) {
    unsigned random = 1;
    for (unsigned long i = 0; i < count; i++) {
        random = random * 1664525 + 1013904223;
        void **p = &held[(random >> 8) % depth];
        USE(*p);
        if (call)
            free(*p);
        *p = call ? pmalloc_alloc(bytes, 0, PINNED) : NULL;
        USE(*p);
    }
}

static void run_churn(unsigned long count) {
    calls ? loop_churn(count, size, true) : loop_churn(count, size, false);
}

static sem_t full, drained;

static void *free_held(void *count) {
    for (unsigned long done = 0; done < *(unsigned long *)count; done += depth) {
        sem_wait(&full);
        for (unsigned i = 0; i < depth; i++) {
            void *p = held[i];
            USE(p);
            if (calls)
                free(p);
        }
        sem_post(&drained);
    }
    return NULL;
}

// Another thread frees the blocks that this thread allocates.
static void run_remote(unsigned long count) {
    pthread_t other;
    sem_init(&full, 0, 0);
    sem_init(&drained, 0, 0);
    if (pthread_create(&other, NULL, free_held, &count) != 0)
        exit(1);
    for (unsigned long done = 0; done < count; done += depth) {
        for (unsigned i = 0; i < depth; i++) {
            void *p = calls ? malloc(size) : NULL;
            USE(p);
            held[i] = p;
        }
        sem_post(&full);
        sem_wait(&drained);
    }
    pthread_join(other, NULL);
}

LOOP loop_lock(unsigned long count, bool call) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    for (unsigned long i = 0; i < count; i++) {
        pthread_mutex_t *m = &mutex;
        USE(m);
        if (call)
            pthread_mutex_lock(m);
        USE(m);
        if (call)
            pthread_mutex_unlock(m);
    }
}

static void run_lock(unsigned long count) {
    calls ? loop_lock(count, true) : loop_lock(count, false);
}

// Frees nothing and touches every page.
static void run_grow(unsigned long count) {
    for (unsigned long i = 0; calls && i < count; i++) {
        char *volatile p = malloc(size);
        for (size_t at = 0; p && at < size; at += 4096)
            p[at] = 1;
    }
}

int pmalloc_commit(void) __attribute__((weak));

// Each commit has 20 pages that lie apart.
static void run_commit(unsigned long count) {
    enum { PAGES = 20, STEP = 1021 };
    unsigned long at = 0;
    for (unsigned i = 0; i < DEPTH_LIMIT; i++)
        memset(held[i] = malloc(size), 1, size);
    for (unsigned long i = 0; calls && i < count; i++) {
        for (unsigned n = 0; n < PAGES; n++, at = (at + STEP) % DEPTH_LIMIT)
            ++*(volatile unsigned char *)held[at];
        if (!pmalloc_commit || pmalloc_commit() != 0)
            exit(1);
    }
}

static const struct {
    const char *name;
    void (*run)(unsigned long count);
    bool warm;
} modes[] = {{"malloc", run_malloc, true},   {"calloc", run_calloc, true},
             {"realloc", run_realloc, true}, {"remote", run_remote, true},
             {"lock", run_lock, true},       {"grow", run_grow, false},
             {"commit", run_commit, false},  {"pointer-free", run_pointer_free, true},
             {"pinned", run_pinned, true},   {"pinned-churn", run_churn, true}};

// A number that ends before `stop`, or where the text does.
static unsigned long number_before(const char *text, char stop, unsigned long limit) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    bool ended = !*end || *end == stop;
    if (text[0] < '0' || text[0] > '9' || !ended || errno || !value || value > limit) {
        fprintf(stderr, "pair: %s is not a number from 1 to %lu\n", text, limit);
        exit(2);
    }
    return value;
}

static unsigned long number(const char *text, unsigned long limit) {
    return number_before(text, '\0', limit);
}

__attribute__((noinline)) static void counted(void (*run)(unsigned long), unsigned long count) {
    run(count);
    __asm__ volatile("" : : : "memory"); // no tail call: callgrind sees the return
}

static void run_each(void (*run)(unsigned long), const char *counts) {
    for (const char *at = counts; at; at = strchr(at, ',')) {
        at += *at == ',';
        counted(run, number_before(at, ',', 1UL << 40));
    }
}

int main(int argc, char **argv) {
    calls = argc < 2 || strncmp(argv[1], "loop-", 5) != 0;
    for (unsigned i = 0; (argc == 4 || argc == 5) && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1] + (calls ? 0 : 5), modes[i].name) != 0)
            continue;
        size = number(argv[3], 1UL << 30);
        depth = argc > 4 ? (unsigned)number(argv[4], DEPTH_LIMIT) : 1;
        if (modes[i].warm)
            modes[i].run(WARM_UP);
        run_each(modes[i].run, argv[2]);
        return 0;
    }
    fprintf(stderr, "usage: pair [loop-]malloc|calloc|realloc|remote|lock|grow|commit|pointer-free|"
                    "pinned|pinned-churn COUNT[,COUNT]... SIZE [DEPTH]\n");
    return 2;
}

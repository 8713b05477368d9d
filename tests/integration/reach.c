// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Free blocks within the reach of every request, counted. Ends with malloc_stats().
//
//     reach elsewhere        another thread frees what main has allocated, and blocks in a system
//                            call with its caches full; main must get all of it again
//     reach thread           the same; the other thread has allocated it, too
//     reach half             the same, and it frees every second block only
//     reach first COUNT      allocates COUNT blocks into `kept` and frees three in four
//     reach second COUNT     after `first`: allocates as many blocks as were freed
//     reach trim THREADS     threads allocate and free all sizes and block; malloc_trim(0)
//     reach race THREADS     threads take blocks, also at the limit, and free those of others,
//                            while one thread trims and another forks; data is checked
//
// reach_cores=N: the allocator sees N processor cores.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__,            \
                    #condition, errno);                                                            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
    const char *cores = getenv("reach_cores");
    CPU_ZERO_S(size, set);
    if (!cores)
        return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
    for (int i = 0; i < atoi(cores); i++)
        CPU_SET_S(i, size, set);
    return 0;
}

enum { SMALL = 64, MOST = 2000000 };
static void *blocks[MOST];
void **kept; // the root of `first` and `second`
static pthread_barrier_t turn;

static void sleep_for_ever(void) {
    for (;;)
        pause();
}

// ---- what another thread has freed --------------------------------------------------------------

static size_t fill(size_t limit) {
    size_t got = 0;
    while (got < limit && (blocks[got] = malloc(SMALL)))
        memset(blocks[got++], 0x5a, SMALL);
    return got;
}

static size_t count, step = 1; // each step-th block is freed

static void *free_all(void *own) {
    pthread_barrier_wait(&turn);
    if (own)
        count = fill(MOST);
    else
        pthread_barrier_wait(&turn);
    for (size_t i = 0; i < count; i += step)
        free(blocks[i]);
    pthread_barrier_wait(&turn);
    sleep_for_ever();
    return NULL;
}

static void mode_elsewhere(int own) {
    pthread_t thread;
    pthread_barrier_init(&turn, NULL, 2);
    void *volatile first = malloc(SMALL); // main joins an arena before the other thread does
    free(first);
    NEED(pthread_create(&thread, NULL, free_all, own ? &turn : NULL) == 0);
    pthread_barrier_wait(&turn);
    if (!own) {
        count = fill(MOST);
        pthread_barrier_wait(&turn);
    }
    pthread_barrier_wait(&turn);
    size_t before = (count + step - 1) / step, after = fill(before);
    for (size_t i = 0; i < after; i++)
        for (size_t j = 0; j < SMALL; j++)
            NEED(((unsigned char *)blocks[i])[j] == 0x5a);
    printf("%zu of %zu failed\n", before - after, before);
}

// ---- what an earlier run has freed --------------------------------------------------------------

static void mode_first(size_t want) {
    kept = malloc(want * sizeof *kept);
    for (size_t i = 0; i < want; i++) {
        NEED(kept[i] = malloc(SMALL));
        memset(kept[i], 0x5a, SMALL);
    }
    for (size_t i = 0; i < want; i++)
        if (i % 4) {
            free(kept[i]);
            kept[i] = NULL;
        }
    printf("%zu kept\n", want / 4);
}

static void mode_second(size_t want) {
    size_t failed = 0;
    for (size_t i = 0; i < want; i++) {
        if (i % 4 == 0)
            for (size_t j = 0; j < SMALL; j++)
                NEED(((unsigned char *)kept[i])[j] == 0x5a);
        else if ((kept[i] = malloc(SMALL)))
            memset(kept[i], 0x5a, SMALL);
        else
            failed++;
    }
    printf("%zu of %zu failed\n", failed, want - want / 4);
}

// ---- what is kept -------------------------------------------------------------------------------

enum { BATCH = 4000 };

static void *work_and_block(void *arg) {
    void **batch = calloc(BATCH, sizeof *batch);
    for (int round = 0; round < 8; round++) {
        for (size_t i = 0; i < BATCH; i++)
            NEED(batch[i] = malloc(16 + i * 37 % 3000));
        for (size_t i = 0; i < BATCH; i++)
            free(batch[i]);
    }
    free(batch);
    pthread_barrier_wait(&turn);
    if (arg)
        sleep_for_ever();
    return NULL;
}

static void mode_trim(unsigned threads) {
    pthread_t thread;
    pthread_barrier_init(&turn, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++)
        NEED(pthread_create(&thread, NULL, work_and_block, &turn) == 0);
    work_and_block(NULL);
    malloc_trim(0);
}

// ---- all at once --------------------------------------------------------------------------------

enum { SLOTS = 4096, ROUNDS = 60000 };
struct object {
    size_t size;
    unsigned char fill[];
};
static _Atomic(struct object *) slot[SLOTS];
static _Atomic uint64_t refused;
static _Atomic int over;

static void check_and_free(struct object *o) {
    if (!o)
        return;
    for (size_t i = 0; i < o->size; i++)
        NEED(o->fill[i] == (o->size & 0xff));
    free(o);
}

static void *race(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        // Sizes change by the time, so that slabs are emptied, morph and change their arenas.
        size_t size = (size_t)(rand_r(&seed) % 400) << (i / (ROUNDS / 6));
        struct object *o = malloc(sizeof *o + size);
        if (o) {
            o->size = size;
            memset(o->fill, (int)(size & 0xff), size);
        } else {
            refused++;
        }
        check_and_free(atomic_exchange(&slot[(unsigned)rand_r(&seed) % SLOTS], o));
    }
    return NULL;
}

static void *trim(void *arg) {
    while (!over) {
        malloc_trim(0);
        sched_yield();
    }
    return arg;
}

static void fork_once(void) {
    pid_t pid = fork();
    if (pid == 0) {
        for (unsigned i = 0; i < 1000; i++)
            free(malloc(i));
        malloc_trim(0);
        _exit(0);
    }
    int status;
    NEED(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void mode_race(unsigned threads) {
    pthread_t thread[64], trimmer;
    NEED(threads <= 64 && pthread_create(&trimmer, NULL, trim, NULL) == 0);
    for (unsigned i = 0; i < threads; i++)
        NEED(pthread_create(&thread[i], NULL, race, (void *)(uintptr_t)(i + 1)) == 0);
    for (unsigned i = 0; i < 10; i++)
        fork_once();
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    over = 1;
    pthread_join(trimmer, NULL);
    for (unsigned i = 0; i < SLOTS; i++)
        check_and_free(slot[i]);
    malloc_trim(0);
    printf("%lu refused\n", (unsigned long)refused);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    step = !strcmp(mode, "half") ? 2 : 1;
    if (!strcmp(mode, "elsewhere") || !strcmp(mode, "thread") || step == 2)
        mode_elsewhere(mode[0] != 'e');
    else if (!strcmp(mode, "first"))
        mode_first(number);
    else if (!strcmp(mode, "second"))
        mode_second(number);
    else if (!strcmp(mode, "trim"))
        mode_trim((unsigned)number);
    else if (!strcmp(mode, "race"))
        mode_race((unsigned)number);
    else
        return 2;
    fflush(stdout);
    malloc_stats();
    return 0;
}

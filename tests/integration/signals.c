// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Signal handlers that allocate and free all the time, while the code that they interrupt does the
// same. Each handler frees what it allocated before it returns, as printf() does. It must never get
// a block that is in use. `signals MODE SECONDS [THREADS]` goes on until ENOUGH handlers have run,
// which takes more than SECONDS where the machine is busy. Status 3: a block has wrong contents.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { HELD = 64, NESTED = 12, ENOUGH = 101 };

void *keep;

static atomic_long handled, refused, worked;
static atomic_bool over;
static size_t largest;
static time_t last;

static void wrong(const char *what) {
    if (write(STDERR_FILENO, what, strlen(what)) < 0)
        _exit(4);
    _exit(3);
}

static size_t some_size(unsigned *seed) {
    static const size_t sizes[] = {16, 24, 64, 64, 100, 300, 2000, 9000, 40000, 200000, 3000000};
    size_t size;
    do
        size = sizes[(unsigned)rand_r(seed) % 11];
    while (size > largest);
    return size;
}

// The first and last words of each page hold the block's own address.
static void mark(char *p, size_t size) {
    for (size_t at = 0; at + 8 <= size; at += at + 8 < size && size > 4096 ? 2040 : 8)
        memcpy(p + at, &p, 8);
}

static void check(char *p, size_t size) {
    for (size_t at = 0; at + 8 <= size; at += at + 8 < size && size > 4096 ? 2040 : 8)
        if (memcmp(p + at, &p, 8) != 0)
            wrong("signals: a block is in two hands\n");
}

static void handler(int number) {
    (void)number;
    static _Thread_local unsigned seed;
    static _Thread_local char *block[NESTED];
    size_t size[NESTED];
    for (int i = 0; i < NESTED; i++) {
        size[i] = some_size(&seed);
        block[i] = malloc(size[i]);
        if (block[i])
            mark(block[i], size[i]);
        refused += !block[i];
    }
    if (block[0] && seed % 3 == 0) {
        char *more = realloc(block[0], size[0] * 2);
        if (more && memcmp(more, &block[0], 8) != 0)
            wrong("signals: realloc lost the contents\n");
        if (more) {
            block[0] = more;
            mark(more, size[0]);
        }
        refused += !more;
    }
    for (int i = NESTED; i-- > 0;)
        if (block[i]) {
            check(block[i], size[i]);
            free(block[i]);
        }
    if (atomic_fetch_add(&handled, 1) + 1 >= ENOUGH && time(NULL) >= last)
        atomic_store(&over, true);
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg + 1;
    char *block[HELD] = {0};
    size_t size[HELD] = {0};
    while (!atomic_load(&over)) {
        int i = rand_r(&seed) % HELD;
        if (block[i]) {
            check(block[i], size[i]);
            free(block[i]);
        }
        size[i] = some_size(&seed);
        block[i] = malloc(size[i]);
        if (!block[i])
            wrong("signals: out of memory\n");
        mark(block[i], size[i]);
        atomic_fetch_add_explicit(&worked, 1, memory_order_relaxed);
    }
    for (int i = 0; i < HELD; i++) {
        if (block[i])
            check(block[i], size[i]);
        free(block[i]);
    }
    return NULL;
}

// Without THREADS the process has one thread, and a timer interrupts it. With THREADS the main
// thread sends signals to each thread in turn.
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "small";
    int seconds = argc > 2 ? atoi(argv[2]) : 2, threads = argc > 3 ? atoi(argv[3]) : 0;
    largest = !strcmp(mode, "small") ? 10000 : 4000000;
    keep = malloc(16);
    last = time(NULL) + seconds;
    pthread_t thread[16];
    signal(threads ? SIGUSR1 : SIGALRM, handler);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) != 0)
            wrong("signals: pthread_create\n");
    if (threads == 0) {
        struct itimerval often = {.it_interval = {0, 50}, .it_value = {0, 50}}, never = {0};
        setitimer(ITIMER_REAL, &often, NULL);
        work(NULL);
        setitimer(ITIMER_REAL, &never, NULL);
    }
    struct timespec pause = {.tv_nsec = 20000};
    while (!atomic_load(&over)) {
        for (int i = 0; i < threads; i++)
            pthread_kill(thread[i], SIGUSR1);
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("ok handled=%ld refused=%ld worked=%ld\n", handled, refused, worked);
    return 0;
}

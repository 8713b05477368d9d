// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process that gets its heap late, while threads, a signal handler or children ask for memory.
// usage: waiting threads|signals|forks|large|strict. Every block keeps what was stored to it.
// Prints "ok".
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "waiting.c:%d: %s does not hold\n", __LINE__, #condition);             \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define BLOCKS 300
#define THREADS 4

static size_t size_of(unsigned i) { return 1 + i * 7919u % 900; }

static void fill(unsigned char **block, unsigned count, unsigned salt) {
    for (unsigned i = 0; i < count; i++) {
        block[i] = malloc(size_of(i));
        CHECK(block[i]);
        memset(block[i], (int)(i + salt) & 255, size_of(i));
    }
}

static void check_and_free(unsigned char **block, unsigned count, unsigned salt) {
    for (unsigned i = 0; i < count; i++) {
        for (size_t at = 0; at < size_of(i); at++)
            CHECK(block[i][at] == ((i + salt) & 255));
        if (i % 3 == 0) {
            block[i] = realloc(block[i], size_of(i) * 2);
            CHECK(block[i] && block[i][size_of(i) - 1] == ((i + salt) & 255));
        }
        free(block[i]);
    }
}

static unsigned char *blocks[THREADS + 1][BLOCKS];
static pthread_barrier_t together;

// Each thread frees what the next one has allocated.
static void *work(void *arg) {
    unsigned self = (unsigned)(size_t)arg, next = (self + 1) % THREADS;
    pthread_barrier_wait(&together);
    fill(blocks[self], BLOCKS, self);
    pthread_barrier_wait(&together);
    check_and_free(blocks[next], BLOCKS, next);
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    unsigned char *p = malloc(40);
    CHECK(p);
    memset(p, 0xaa, 40);
    free(p);
    alarms++;
}

static void signals(void) {
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned round = 0; round < 20 || alarms < 20; round++) {
        fill(blocks[0], BLOCKS, round);
        check_and_free(blocks[0], BLOCKS, round);
    }
    setitimer(ITIMER_REAL, &never, NULL);
}

static void forks(void) {
    int status;
    for (unsigned few = 0; few < BLOCKS; few += 50) {
        fill(blocks[0], few, 1);
        pid_t child = fork();
        if (child == 0) {
            fill(blocks[1], BLOCKS, 2);
            check_and_free(blocks[0], few, 1);
            check_and_free(blocks[1], BLOCKS, 2);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        check_and_free(blocks[0], few, 1);
    }
}

static void large(void) {
    fill(blocks[0], 10, 1);
    char *big = calloc(1, (size_t)40 << 20);
    CHECK(big && big[20 << 20] == 0);
    memset(big, 1, (size_t)40 << 20);
    free(big);
    check_and_free(blocks[0], 10, 1);
}

// After this the process may only read, write and exit.
static void strict(void) {
    fill(blocks[0], 10, 1);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    fill(blocks[1], BLOCKS, 2);
    check_and_free(blocks[0], 10, 1);
    check_and_free(blocks[1], BLOCKS, 2);
    CHECK(write(STDOUT_FILENO, "ok\n", 3) == 3);
    syscall(SYS_exit, 0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "threads"))
        threads();
    else if (!strcmp(how, "signals"))
        signals();
    else if (!strcmp(how, "forks"))
        forks();
    else if (!strcmp(how, "large"))
        large();
    else if (!strcmp(how, "strict"))
        strict();
    else
        return 2;
    puts("ok");
    return 0;
}

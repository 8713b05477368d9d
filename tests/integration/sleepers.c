// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that sleep beside one that answers, for test_sleepers.py.
//
//   sleepers HOW COUNT ANSWERS   COUNT threads sleep in a call: poll, read, semaphore or condition
//
// Stores, writes an answer to standard output, and so on. Without answers: writes how many there
// were in all runs.
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

long *answers; // the root
static const char *how;
static int empty[2];
static sem_t never;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t begun;

static void *sleep_in(void *unused) {
    char c;
    pthread_barrier_wait(&begun);
    for (;;)
        switch (how[0]) {
        case 'p':
            poll(NULL, 0, -1);
            break;
        case 'r':
            if (read(empty[0], &c, 1) != 1)
                return unused;
            break;
        case 's':
            sem_wait(&never);
            break;
        default:
            pthread_mutex_lock(&mutex);
            pthread_cond_wait(&condition, &mutex);
            pthread_mutex_unlock(&mutex);
        }
}

int main(int argc, char **argv) {
    if (argc != 4 || pipe(empty) != 0)
        return 2;
    how = argv[1];
    unsigned count = (unsigned)atoi(argv[2]);
    long most = atol(argv[3]);
    sem_init(&never, 0, 0);
    pthread_barrier_init(&begun, NULL, count + 1);
    for (unsigned i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, sleep_in, NULL) != 0)
            return 3;
    }
    pthread_barrier_wait(&begun);
    if (!answers)
        answers = calloc(1, sizeof *answers);
    for (long i = 0; i < most; i++) {
        ++*answers;
        if (write(1, "+", 1) != 1)
            return 4;
    }
    if (most == 0)
        printf("%ld\n", *answers);
    fflush(stdout);
    _exit(0);
}

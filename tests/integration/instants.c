// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose commits cannot all lie between its operations, and which says in what.
// usage: instants variable|block|none ANSWERS [THREADS]
//
// A thread "worker" has a lock for good, which lies in a variable or in a block of the heap; or it
// runs without one. THREADS more never take a lock, and sleep nearly all the time. After its
// answers the program waits for the end of its input, and then for that of the worker.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct {
    long before[3];
    pthread_mutex_t lock;
} accounts = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct store {
    long said;
    pthread_mutex_t lock;
} * root;

static _Atomic int begun, over;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *work(void *lock) {
    pthread_setname_np(pthread_self(), "worker");
    if (lock)
        pthread_mutex_lock(lock);
    for (begun = 1; !over;)
        for (volatile int i = 0; i < 1000; i++)
            continue;
    return NULL;
}

static void *doze(void *unused) {
    for (;;)
        usleep(10000);
    return unused;
}

static pthread_t make_thread(void *(*run)(void *), void *arg) {
    pthread_t id;
    if (pthread_create(&id, NULL, run, arg) != 0)
        fail("pthread_create");
    return id;
}

static void begin(void) {
    if (!root && !(root = calloc(1, sizeof *root)))
        fail("calloc");
    pthread_mutex_init(&root->lock, NULL);
}

static void say(void) {
    char text[32];
    int len = snprintf(text, sizeof text, "%ld\n", ++root->said);
    if (write(1, text, (size_t)len) != len)
        fail("write");
}

int main(int argc, char **argv) {
    char byte;
    if (argc < 3)
        fail("usage");
    begin();
    void *lock = strcmp(argv[1], "variable") == 0 ? &accounts.lock
                 : strcmp(argv[1], "block") == 0  ? &root->lock
                                                  : NULL;
    for (int i = 0; argc > 3 && i < atoi(argv[3]); i++)
        make_thread(doze, NULL);
    pthread_t worker = make_thread(work, lock);
    while (!begun)
        usleep(100);
    for (int i = 0; i < atoi(argv[2]); i++)
        say();
    if (read(0, &byte, 1) != 0)
        fail("input");
    over = 1;
    return pthread_join(worker, NULL);
}

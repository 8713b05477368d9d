// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that ends while other threads are at work, at each kind of place in turn:
//
//     ends_beside MODE HOW     prints how many nodes its stacks have, starts threads, ends
//
// MODE says where the threads are: in malloc and free (small, large), in critical sections
// (locks), asleep in calls (calls), in a handler that has interrupted malloc (handler). HOW is
// how the program ends: main (by a return), thread (exit() by a detached thread), quick
// (quick_exit), _exit, fork (a child ends by exit() first). Exit status 3: what the last run left
// is not whole.
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, DEEP = 100 };

struct node {
    struct node *next;
    size_t size;
    char fill[];
};

// A root. What a lock protects is equal at each instant between operations.
struct {
    struct node *volatile top[THREADS];
    pthread_mutex_t lock;
    volatile unsigned long one;
    char page[5000];
    volatile unsigned long other;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int pipe_end[2];
static volatile int begun;
static size_t least, most;

static void *allocate(void *arg) {
    struct node *volatile *top = &kept.top[(size_t)arg];
    size_t depth = 0;
    for (struct node *n = *top; n; n = n->next)
        depth++;
    for (unsigned seed = (unsigned)(size_t)arg + 1;; seed = seed * 1103515245 + 12345) {
        __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
        struct node *old = *top;
        if (old && (seed >> 16) % DEEP < depth) {
            *top = old->next;
            free(old);
            depth--;
            continue;
        }
        size_t size = least + (seed >> 8) % (most - least);
        struct node *n = malloc(size);
        n->next = old;
        n->size = size;
        memset(n->fill, (int)(size & 127), 40);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        *top = n;
        depth++;
    }
    return NULL;
}

static void *lock(void *arg) {
    for (;;) {
        pthread_mutex_lock(&kept.lock);
        kept.one++;
        free(malloc(100 + kept.one % 5000));
        for (volatile int i = 0; i < 1000; i++) // nearly always a thread is here
            ;
        kept.other++;
        pthread_mutex_unlock(&kept.lock);
        __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
    }
    return arg;
}

static void *sleep_in_call(void *arg) {
    static sem_t nobody_posts;
    struct pollfd fd = {pipe_end[0], POLLIN, 0};
    char byte;
    for (int i = 0; i < 100; i++) // the block is in this thread's cache then
        free(malloc(1000));
    __atomic_fetch_add(&begun, 1000, __ATOMIC_RELAXED);
    if ((size_t)arg == 0 && read(pipe_end[0], &byte, 1) >= 0)
        abort();
    if ((size_t)arg == 1 && poll(&fd, 1, -1) >= 0)
        abort();
    if ((size_t)arg == 2)
        sem_wait(&nobody_posts);
    pause();
    return NULL;
}

static void wait_in_handler(int number) {
    for (begun = number;;)
        pause();
}

static void *interrupted(void *arg) {
    signal(SIGUSR1, wait_in_handler);
    return (size_t)arg ? sleep_in_call(arg) : allocate(arg);
}

static void *end(void *unused) { exit(unused ? 1 : 0); }

static int is_whole(void) {
    long nodes = 0;
    for (int i = 0; i < THREADS; i++)
        for (struct node *n = kept.top[i]; n; n = n->next, nodes++)
            for (int b = 0; b < 40; b++)
                if (n->fill[b] != (char)(n->size & 127))
                    return 0;
    printf("%ld %lu\n", nodes, kept.one);
    fflush(stdout);
    return kept.one == kept.other;
}

static void begin(const char *mode) {
    void *(*run)(void *) = strcmp(mode, "locks") == 0   ? lock
                           : strcmp(mode, "calls") == 0 ? sleep_in_call
                                                        : allocate;
    if (strcmp(mode, "handler") == 0)
        run = interrupted;
    least = strcmp(mode, "large") == 0 ? 20000 : 64;
    most = least == 64 ? 2000 : 200000;
    pthread_t id, first = 0;
    for (size_t i = 0; i < THREADS; i++) {
        if (pthread_create(&id, NULL, run, (void *)i) != 0)
            exit(4);
        first = i == 0 ? id : first;
        pthread_detach(id);
    }
    while (begun < 3500)
        usleep(100);
    if (run == interrupted)
        pthread_kill(first, SIGUSR1);
    usleep(1000);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
    pthread_t id;
    if (!is_whole() || pipe(pipe_end) != 0)
        return 3;
    begin(mode);
    if (strcmp(how, "fork") == 0) {
        pid_t child = fork();
        if (child == 0)
            exit(5);
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5)
            return 6;
    }
    if (strcmp(how, "quick") == 0)
        quick_exit(0);
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    if (strcmp(how, "thread") == 0 && pthread_create(&id, NULL, end, NULL) == 0)
        for (;;)
            pause();
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// For test_backup_live.py: a program whose heap tells whether a copy of it is of one instant.
//
//   run THREADS PAGES [filter] [nap] [tell] [ask] [execute]
//                                 works until standard input ends; then prints how many calls have
//                                 failed that must not, and how far it has come. `filter`: under
//                                 seccomp. `nap`: a thread sleeps before each count. `tell`: what
//                                 is said to a socket, `ask`: pmalloc_commit() from time to time.
//                                 `execute`: it executes itself again and again
//   check                         looks at the heap that an earlier run has left, and prints how
//                                 far that had come
//
// Thread 0 counts. Thread k counts up to what thread k - 1 has counted, so at any instant no
// thread is ahead of the one before it. Before each count a thread writes the number to the next
// page of its ring, and to a block that it has just allocated. So the pages of a ring tell, to a
// store, which instant they are of. Further threads sleep in calls of all kinds.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, AHEAD = 1000, THREADS_MAX = 16 };

struct block {
    uint64_t number, copy;
};

struct counter {
    _Alignas(PAGE) _Atomic uint64_t count;
    char *ring;
    _Atomic(struct block *) block; // of the last count, or of the next one
};

struct world {
    unsigned threads;
    uint64_t pages;
    struct counter *counter;
};

struct world *world; // the root

static atomic_bool over;
static bool naps, tells, asks;
static char **again; // the command, of a program that executes itself
static atomic_ulong interrupted, slept;

// ---- checking -----------------------------------------------------------------------------------

static void wrong(const char *what, unsigned thread, uint64_t is, uint64_t wanted) {
    printf("wrong: %s of thread %u is %lu, not %lu\n", what, thread, (unsigned long)is,
           (unsigned long)wanted);
    exit(1);
}

// The newest number up to `count` that belongs on this page.
static uint64_t due(uint64_t count, uint64_t page) {
    uint64_t back = (count - page) % world->pages;
    return count < page || back > count ? 0 : count - back;
}

static void check_thread(unsigned k, uint64_t count) {
    const struct counter *c = &world->counter[k];
    for (uint64_t page = 0; page < world->pages; page++) {
        uint64_t is = *(const uint64_t *)(c->ring + page * PAGE), wanted = due(count, page);
        bool next = is == count + 1 && is % world->pages == page;
        if (is != wanted && !next)
            wrong("a page", k, is, wanted);
    }
    const struct block *b = atomic_load(&c->block);
    if (b && (b->number != b->copy || b->number < count || b->number > count + 1))
        wrong("the block", k, b->number, count);
}

static int check(void) {
    uint64_t before = UINT64_MAX, first = 0;
    if (!world) {
        puts("nothing");
        return 1;
    }
    for (unsigned k = 0; k < world->threads; k++) {
        uint64_t count = atomic_load(&world->counter[k].count);
        if (count > before)
            wrong("the count", k, count, before);
        if (k == 0)
            first = count;
        if (count + AHEAD < first)
            wrong("the count", k, count, first);
        check_thread(k, count);
        before = count;
    }
    printf("%lu\n", (unsigned long)first);
    return 0;
}

// ---- counting -----------------------------------------------------------------------------------

static void step(struct counter *c, uint64_t number) {
    struct block *b = malloc(sizeof *b + number % 300), *old = atomic_load(&c->block);
    b->number = b->copy = number;
    *(volatile uint64_t *)(c->ring + number % world->pages * PAGE) = number;
    atomic_store(&c->block, b);
    atomic_store(&c->count, number);
    free(old);
}

int pmalloc_commit(void) __attribute__((weak));

static void *work(void *arg) {
    struct counter *c = arg;
    unsigned k = (unsigned)(c - world->counter);
    uint64_t number = atomic_load(&c->count);
    while (!atomic_load(&over)) {
        uint64_t limit = k ? atomic_load(&c[-1].count)
                           : atomic_load(&world->counter[world->threads - 1].count) + AHEAD;
        if (naps)
            usleep(1);
        if (asks && k == 0 && number % 500 == 0 && pmalloc_commit)
            pmalloc_commit();
        if (number < limit)
            step(c, ++number);
        else
            usleep(number % 100);
    }
    return NULL;
}

static char *pages(uint64_t count) {
    char *at = aligned_alloc(PAGE, count * PAGE);
    memset(at, 0, count * PAGE);
    return at;
}

static void make(unsigned threads, uint64_t count) {
    struct world *w = calloc(1, sizeof *w);
    w->threads = threads;
    w->pages = count;
    w->counter = (void *)pages(threads * sizeof(struct counter) / PAGE);
    for (unsigned k = 0; k < threads; k++)
        w->counter[k].ring = pages(count);
    world = w;
}

// ---- sleeping -----------------------------------------------------------------------------------

// A call may fail because its time is up, and for no other reason.
static void note(long result, int allowed) {
    slept++;
    if (result < 0 && errno != allowed)
        interrupted++;
}

static void *sleep_in_polls(void *arg) {
    int events = epoll_create1(0);
    struct epoll_event event;
    (void)arg;
    while (!atomic_load(&over)) {
        note(epoll_wait(events, &event, 1, 3), 0);
        note(poll(NULL, 0, 2), 0);
        note(nanosleep(&(struct timespec){.tv_nsec = 1500000}, NULL), 0);
    }
    return NULL;
}

static void *sleep_in_others(void *arg) {
    int pair[2], set = semget(IPC_PRIVATE, 1, 0600);
    const struct timeval time = {.tv_usec = 2000};
    const struct timespec two_ms = {.tv_nsec = 2000000};
    struct sembuf take = {0, -1, 0};
    char byte;
    (void)arg;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return NULL;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    while (!atomic_load(&over)) {
        if (tells)
            note(send(pair[1], "x", 1, 0), 0);
        note(recv(pair[0], &byte, 1, 0), EAGAIN);
        if (set >= 0)
            note(semtimedop(set, &take, 1, &two_ms), EAGAIN);
    }
    semctl(set, 0, IPC_RMID);
    return NULL;
}

// By another thread than the first one, amid the work of all.
static void *execute_again(void *argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    usleep(10000 + (unsigned)now.tv_nsec / 1000 % 60000);
    execv("/proc/self/exe", argv);
    return NULL;
}

// A filter that allows all: it is enough that there is one.
static void filter(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(3);
}

static int run(unsigned threads, uint64_t count) {
    pthread_t thread[THREADS_MAX + 2], other;
    if (!world)
        make(threads, count);
    for (unsigned k = 0; k < world->threads; k++)
        pthread_create(&thread[k], NULL, work, &world->counter[k]);
    pthread_create(&thread[world->threads], NULL, sleep_in_polls, NULL);
    pthread_create(&thread[world->threads + 1], NULL, sleep_in_others, NULL);
    if (again)
        pthread_create(&other, NULL, execute_again, again);
    puts("runs");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    over = true;
    for (unsigned k = 0; k < world->threads + 2; k++)
        pthread_join(thread[k], NULL);
    printf("interrupted %lu of %lu, count %lu\n", (unsigned long)interrupted, (unsigned long)slept,
           (unsigned long)world->counter[0].count);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return check();
    for (int i = 4; i < argc; i++) {
        naps |= strcmp(argv[i], "nap") == 0;
        tells |= strcmp(argv[i], "tell") == 0;
        asks |= strcmp(argv[i], "ask") == 0;
        again = strcmp(argv[i], "execute") == 0 ? argv : again;
        if (strcmp(argv[i], "filter") == 0)
            filter();
    }
    if (argc >= 4 && strcmp(argv[1], "run") == 0)
        return run((unsigned)atoi(argv[2]), strtoull(argv[3], NULL, 10));
    return 2;
}

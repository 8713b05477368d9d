// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that opens its heap by a call (pmalloc.h), in different ways.
//
//   named list HEAP            adds to a list by publishes until it is killed
//   named check HEAP [COMMAND] counts the list, adds an entry, closes the heap, runs the command
//   named try HEAP...          opens one after the other, and says what became of each
//   named early HEAP           blocks and calls from before the call
//   named fork HEAP            forks before the call, and after it
//   named threads HEAP         closes while a thread runs
//   named late HEAP            allocates too much before the call
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/pmalloc.h"

struct entry {
    struct entry *next;
    uint64_t number, check;
};

struct list {
    struct entry *first;
    uint64_t count;
};

static void must(int good, const char *what) {
    if (good)
        return;
    printf("not so: %s (errno %d)\n", what, errno);
    exit(3);
}

static struct list *the_list(void) {
    struct list *list = pmalloc_get_root(0);
    pmalloc_op op[2];
    if (list)
        return list;
    list = pmalloc_reserve(&op[0], sizeof *list, 0, PMALLOC_ZERO);
    must(list && pmalloc_store_root(&op[1], 0, list) == 0 && pmalloc_publish(op, 2) == 0, "a list");
    return list;
}

static void add(struct list *list) {
    pmalloc_op op[3];
    struct entry *e = pmalloc_reserve(&op[0], sizeof *e, 0, 0);
    must(e != NULL, "an entry");
    *e = (struct entry){list->first, list->count, ~list->count};
    pmalloc_store(&op[1], &list->first, (uintptr_t)e);
    pmalloc_store(&op[2], &list->count, list->count + 1);
    must(pmalloc_publish(op, 3) == 0, "a publish");
}

static uint64_t counted(const struct list *list) {
    uint64_t n = list->count;
    for (const struct entry *e = list->first; e; e = e->next)
        must(e->number == --n && e->check == ~n, "an entry is whole");
    must(n == 0, "the count is right");
    return list->count;
}

static void grow(const char *heap) {
    must(pmalloc_open(heap, 0) == 0, "open");
    struct list *list = the_list();
    printf("%lu\n", (unsigned long)counted(list));
    fflush(stdout);
    for (;;)
        add(list);
}

static void check(const char *heap, const char *command) {
    must(pmalloc_open(heap, PMALLOC_EXISTING) == 0, "open");
    must(pmalloc_is_persistent() && pmalloc_generation() > 0, "it is persistent");
    must(strcmp(pmalloc_heap_path(), heap) == 0, "it is this heap");
    struct list *list = the_list();
    uint64_t count = counted(list);
    add(list);
    must(pmalloc_close() == 0, "close");
    must(!pmalloc_is_persistent() && !pmalloc_get_root(0) && !pmalloc_generation(), "no heap");
    must(pmalloc_heap_path()[0] == '\0', "no path");
    must(!command || system(command) == 0, "another process changes the heap");
    must(counted(list) == count + 1, "the blocks are copies");
    add(list); // to private memory
    free(list->first);
    for (unsigned i = 0; i < 100; i++)
        must(malloc(i * 1000 + 1) != NULL, "memory after the close");
    must(pmalloc_close() == -1 && errno == EINVAL, "a second close");
    must(pmalloc_open(heap, 0) == -1 && errno == EBUSY, "no second open");
    printf("%lu\n", (unsigned long)count);
}

static void try(char **heap) {
    must(pmalloc_close() == -1 && errno == EINVAL, "close without open");
    must(pmalloc_open(NULL, 0) == -1 && errno == EINVAL, "no path");
    must(pmalloc_open("x", 64) == -1 && errno == EINVAL, "unknown flags");
    for (; *heap; heap++) {
        char *p = malloc(100);
        int status = pmalloc_open(*heap, PMALLOC_EXISTING), error = errno;
        printf("%d %s %d\n", status, status ? strerror(error) : "-", pmalloc_is_persistent());
        free(p);
    }
}

static int freed;
static int note_free(void *p) {
    (void)p;
    freed++;
    return 0;
}

static int stop_at_once(void *p, size_t size, unsigned flags, void *arg) {
    (void)p, (void)size, (void)flags, (void)arg;
    return 1;
}

// Every function of pmalloc.h may come before the call. None makes the process volatile for good.
static void *early_calls(void) {
    static void *word;
    pmalloc_op op[4] = {0};
    pmalloc_set_free_callback(note_free);
    must(pmalloc_walk(stop_at_once, NULL) == 0, "no heap has no blocks");
    must(pmalloc_collect() == -1 && errno == ENOTSUP, "nothing to collect");
    must(pmalloc_commit() == -1 && errno == ENOTSUP, "nothing to commit");
    must(pmalloc_malloc_to(&word, 10) && pmalloc_free_from(&word) == 0 && !word, "one pointer");
    for (unsigned flags = 0; flags < 16; flags++) {
        char *p = pmalloc_reserve(&op[0], 100, flags % 2 * 64, flags);
        char *q = pmalloc_alloc(100, 0, flags);
        must(p && q && (!(flags & PMALLOC_ZERO) || (p[99] == 0 && q[99] == 0)), "early blocks");
        memset(p, 1, 100);
        memset(q, 1, 100);
        pmalloc_defer_free(&op[1], q);
        must(pmalloc_store(&op[2], &word, (uintptr_t)p) == 0, "an early store");
        must(pmalloc_publish(op, 3) == 0 && word == p, "an early publish");
        free(p);
    }
    return pmalloc_reserve(&op[0], 100, 0, PMALLOC_PINNED);
}

static void early(const char *heap) {
    void *kept = early_calls();
    char *p = strdup("early"), *q = malloc(1 << 20), *r = malloc(100), *s = malloc(200);
    memset(q, 7, 1 << 20);
    must(!pmalloc_is_persistent() && !pmalloc_get_root(0) && pmalloc_set_root(0, p) == -1, "none");
    must(pmalloc_open(heap, 0) == 0, "open");
    must(strcmp(p, "early") == 0 && q[(1 << 20) - 1] == 7, "blocks stay");
    uintptr_t was = (uintptr_t)p;
    p = realloc(p, 100000);
    must((uintptr_t)p != was && strcmp(p, "early") == 0, "realloc moves it into the heap");
    free(q);
    free(r);
    free(s);
    free(kept);
    free(pmalloc_alloc(100, 0, 0));
    must(freed > 0, "the callback is asked about blocks of the heap");
    must(pmalloc_set_root(0, p) == 0 && pmalloc_get_root(0) == p, "a root");
}

static int child(const char *heap, int expected) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        status = pmalloc_open(heap, 0);
        int good = expected ? status == -1 && errno == expected : status == 0 && malloc(100);
        must(expected || pmalloc_close() == 0, "close in a child");
        exit(good ? 0 : 1);
    }
    must(waitpid(pid, &status, 0) == pid, "a child");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void forks(const char *heap) {
    must(child(heap, 0), "a child opens and closes it");
    must(pmalloc_open(heap, 0) == 0, "its parent opens it then");
    struct list *list = the_list();
    add(list);
    must(child(heap, EBUSY), "a child has had it");
    pid_t pid = fork();
    int status;
    if (pid == 0)
        exit(pmalloc_close() == -1 && errno == EINVAL ? 0 : 1);
    must(waitpid(pid, &status, 0) == pid && status == 0, "a child has nothing to close");
    must(pmalloc_close() == 0, "close");
    must(child(heap, EBUSY) && counted(list) == 1, "a child after the close");
}

static volatile int blocks;

static void *wait_for(void *mutex) {
    free(malloc(1000));
    pthread_mutex_lock(mutex);
    return NULL;
}

static void *block_signals(void *unused) {
    unsigned long all = ~0ul;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
    __atomic_store_n(&blocks, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&blocks, __ATOMIC_ACQUIRE))
        ;
    return unused;
}

// Blocks from before the close, and those that come after it.
static void *work(void *rounds) {
    unsigned char *block[100] = {0};
    for (unsigned i = 0; blocks >= 0; i++) {
        unsigned char **p = &block[i * 7 % 100];
        must(!*p || (**p == i * 7 % 100 && (*p)[99] == **p), "a block keeps what it has");
        free(*p);
        *p = malloc(100 + i % 9 * 3000);
        memset(*p, (int)(i * 7 % 100), 100);
        __atomic_store_n((unsigned *)rounds, i, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void await(unsigned *rounds) {
    for (unsigned from = __atomic_load_n(rounds, __ATOMIC_RELAXED);
         __atomic_load_n(rounds, __ATOMIC_RELAXED) < from + 1000;)
        usleep(100);
}

// A thread that sleeps, and one that works before, during and after the close.
static void threads(const char *heap) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t id[3];
    unsigned rounds = 0;
    pthread_mutex_lock(&mutex);
    must(pthread_create(&id[0], NULL, wait_for, &mutex) == 0, "a thread");
    must(pmalloc_open(heap, 0) == 0, "open beside a thread");
    struct list *list = the_list();
    add(list);
    must(pthread_create(&id[1], NULL, block_signals, NULL) == 0, "a thread");
    while (!__atomic_load_n(&blocks, __ATOMIC_ACQUIRE))
        usleep(100);
    must(pmalloc_close() == -1 && errno == EBUSY, "no close beside a thread that is not held");
    __atomic_store_n(&blocks, 0, __ATOMIC_RELEASE);
    pthread_join(id[1], NULL);
    must(pthread_create(&id[2], NULL, work, &rounds) == 0, "a thread");
    add(list);
    await(&rounds);
    must(pmalloc_close() == 0, "a close beside threads");
    must(pmalloc_close() == -1 && errno == EINVAL, "it is closed");
    list->first = NULL; // of this process alone
    await(&rounds);
    blocks = -1;
    pthread_join(id[2], NULL);
    pthread_mutex_unlock(&mutex);
    pthread_join(id[0], NULL);
}

static void late(const char *heap) {
    char *p = malloc(20 << 20);
    must(p != NULL, "memory");
    must(pmalloc_open(heap, 0) == -1 && errno == EBUSY, "too late");
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (strcmp(what, "list") == 0)
        grow(argv[2]);
    else if (strcmp(what, "check") == 0)
        check(argv[2], argv[3]);
    else if (strcmp(what, "try") == 0)
        try(argv + 2);
    else if (strcmp(what, "early") == 0)
        early(argv[2]);
    else if (strcmp(what, "fork") == 0)
        forks(argv[2]);
    else if (strcmp(what, "threads") == 0)
        threads(argv[2]);
    else if (strcmp(what, "late") == 0)
        late(argv[2]);
    else
        return 2;
    puts("ok");
    return 0;
}

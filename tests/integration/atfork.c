// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pthread_atfork() handlers that allocate and free. A library's constructor registers some, the
// program's constructor others, and main the rest. Other threads of the process allocate meanwhile.
// After the fork, parent and child each write to what they got in their handlers; neither may see
// the other's stores. Built twice: as a library (LIBRARY) and as its program, `atfork ROUNDS
// THREADS`.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 300 };

// The state of one set of handlers.
struct set {
    char *block[BLOCKS];
    size_t size[BLOCKS];
};

static void fail(const char *what) {
    if (write(STDERR_FILENO, what, strlen(what)) < 0)
        _exit(4);
    _exit(3);
}

// Sizes that a thread cache serves, that need a new slab, and that need an extent.
static size_t size_of(int i) {
    return i % 50 == 49 ? 300000 : i % 10 == 9 ? 20000 : (size_t)(16 + i * 37);
}

static void fill(struct set *set, int tag) {
    for (int i = 0; i < BLOCKS; i++) {
        free(set->block[i]);
        set->size[i] = size_of(i);
        set->block[i] = malloc(set->size[i]);
        if (!set->block[i])
            fail("atfork: no memory\n");
        memset(set->block[i], tag, set->size[i]);
    }
}

static void check(const struct set *set, int tag) {
    for (int i = 0; i < BLOCKS; i++)
        if (set->block[i][0] != (char)tag ||
            memcmp(set->block[i], set->block[i] + 1, set->size[i] - 1) != 0)
            fail("atfork: a handler's block was overwritten\n");
}

void late_set(void);
void check_library(int tag);

#ifdef LIBRARY
static struct set early;
static void prepare(void) { fill(&early, 'r'); }
static void parent(void) {
    check(&early, 'r');
    fill(&early, 'p');
}
static void child(void) {
    check(&early, 'r');
    fill(&early, 'c');
}
// Runs first in the process, before anything asks for memory.
__attribute__((constructor(101))) static void first(void) {
    pthread_atfork(prepare, parent, child);
}

void check_library(int tag) { check(&early, tag); }
#else
struct set late; // a root
static struct set middle;

static void prepare_middle(void) { fill(&middle, 'r'); }
static void parent_middle(void) { fill(&middle, 'p'); }
static void child_middle(void) { fill(&middle, 'c'); }
static void prepare_late(void) { fill(&late, 'r'); }
static void parent_late(void) { fill(&late, 'p'); }
static void child_late(void) { fill(&late, 'c'); }

__attribute__((constructor)) static void second(void) {
    pthread_atfork(prepare_middle, parent_middle, child_middle);
}

static atomic_bool over;

static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    static _Thread_local char *block[32];
    static _Thread_local size_t size[32];
    while (!atomic_load(&over)) {
        int i = rand_r(&seed) % 32;
        if (block[i] && (block[i][0] != (char)i || block[i][size[i] - 1] != (char)i))
            fail("atfork: a thread's block was overwritten\n");
        free(block[i]);
        size[i] = size_of(rand_r(&seed) % BLOCKS);
        block[i] = malloc(size[i]);
        memset(block[i], i, size[i]);
    }
    for (int i = 0; i < 32; i++)
        free(block[i]);
    return NULL;
}

static void check_all(int tag) {
    check_library(tag);
    check(&middle, tag);
    check(&late, tag);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10, threads = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t thread[8];
    memset(&late, 0, sizeof late);
    pthread_atfork(prepare_late, parent_late, child_late);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) != 0)
            fail("atfork: pthread_create\n");
    for (int i = 0; i < rounds; i++) {
        int status;
        pid_t pid = fork();
        if (pid < 0)
            fail("atfork: fork\n");
        struct set more = {0};
        fill(&more, pid ? 'P' : 'C');
        check(&more, pid ? 'P' : 'C');
        check_all(pid ? 'p' : 'c');
        if (pid == 0)
            _exit(0);
        if (waitpid(pid, &status, 0) != pid || status != 0)
            fail("atfork: the child failed\n");
        check(&more, 'P');
        check_all('p');
        for (int k = 0; k < BLOCKS; k++)
            free(more.block[k]);
    }
    atomic_store(&over, true);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%d forks\n", rounds);
    return 0;
}
#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pinned blocks that threads hand on through a table in the heap and free, also on other nodes.
//
//   freed_far check    checks the table, and frees what a kill has left in no place of it
//   freed_far run N    the same, says "ready", and N threads replace and free blocks until killed
//
// The table has no pointers: each word is the complement of one. A thread that is killed may leave
// one block in no place: new and not entered yet, or taken out and not freed yet.
#include "preload/pmalloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES 512
#define THREADS 4
#define FOUND 4096

struct block {
    uint64_t key, check;
};

struct table {
    _Atomic uint64_t place[PLACES];
    _Atomic uint64_t changes;
};

static struct table *table;
static struct block *found[FOUND];
static unsigned count;

static void wrong(const char *what, uint64_t is, uint64_t want) {
    printf("wrong: %s: %lu, %lu\n", what, (unsigned long)is, (unsigned long)want);
    _exit(1);
}

static int add(void *p, size_t size, unsigned flags, void *unused) {
    (void)size, (void)unused;
    if (flags & PMALLOC_PINNED && count < FOUND)
        found[count++] = p;
    return 0;
}

static struct block *at(unsigned i) {
    uint64_t word = table->place[i];
    return word ? (struct block *)(uintptr_t)~word : NULL;
}

// Takes it out of what was found. It is a block that nobody has freed.
static void check_block(const struct block *b) {
    unsigned i = 0;
    while (i < count && found[i] != b)
        i++;
    if (i == count)
        wrong("a block of the table is not allocated", (uint64_t)(uintptr_t)b, 0);
    if (b->check != ~b->key)
        wrong("a block", b->check, ~b->key);
    found[i] = found[--count];
}

static void check(void) {
    unsigned blocks = 0;
    pmalloc_walk(add, NULL);
    for (unsigned i = 0; i < PLACES; i++)
        if (at(i)) {
            check_block(at(i));
            blocks++;
        }
    if (count > THREADS)
        wrong("blocks that are in no place", count, THREADS);
    while (count)
        free(found[--count]);
    printf("ok %u blocks %lu changes\n", blocks, (unsigned long)table->changes);
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg + 8 * (unsigned)pmalloc_generation();
    for (unsigned i = 0;; i++) {
        size_t more =
            rand_r(&seed) % 8 ? (size_t)rand_r(&seed) % 100 : (size_t)rand_r(&seed) % 9000;
        struct block *b = pmalloc_alloc(sizeof *b + more, 0, PMALLOC_PINNED);
        if (!b)
            wrong("no memory", more, 0);
        b->key = (uint64_t)rand_r(&seed);
        b->check = ~b->key;
        uint64_t old = atomic_exchange(&table->place[(unsigned)rand_r(&seed) % PLACES],
                                       ~(uint64_t)(uintptr_t)b);
        if (old) {
            struct block *gone = (struct block *)(uintptr_t)~old;
            if (gone->check != ~gone->key)
                wrong("a block that is handed on", gone->check, ~gone->key);
            memset(gone, 0, sizeof *gone);
            free(gone);
        }
        atomic_fetch_add(&table->changes, 1);
        if (i % 4 == 0)
            pmalloc_migrate();
        if (i % 256 == 255)
            (void)pmalloc_commit();
    }
    return NULL;
}

int main(int argc, char **argv) {
    static char line[BUFSIZ];
    setvbuf(stdout, line, _IOLBF, sizeof line);
    table = pmalloc_get_root(0);
    if (!table && !(table = pmalloc_alloc(sizeof *table, 0, PMALLOC_ZERO | PMALLOC_POINTER_FREE)))
        wrong("no table", 0, 0);
    if (pmalloc_set_root(0, table) != 0)
        wrong("no root", 0, 0);
    check();
    if (argc < 3)
        return 0;
    printf("ready\n");
    pthread_t thread;
    for (int i = 1; i < atoi(argv[2]) && i < THREADS; i++)
        pthread_create(&thread, NULL, work, (void *)(uintptr_t)i);
    work(NULL);
}

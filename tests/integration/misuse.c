// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Two threads that allocate all the time, and a shell that does wrong things meanwhile. It reads
// one command a line. It answers "ok ...", "null ...", or "wrong ..." where the heap's contents are
// wrong.
//
//   double SIZE | interior SIZE | foreign | stack     a bad free
//   overflow SIZE BY        writes BY bytes over the end of a block into its neighbour, which is
//                           the program's own, too
//   grow MB | drop          keeps blocks of 100000 bytes; frees all of them and trims
//   closefrom FD | dup2 FD | chdir DIR     what daemons do to what they inherit
//   fsize MB                setrlimit(RLIMIT_FSIZE), with SIGXFSZ as it is by default
//   verify | quit
//
// Everything hangs on `table`, the root. Before the first command it prints "ready KEPT", the
// number of kept blocks that it found.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 2, SLOTS = 200, KEPT = 100000, KEPT_SIZE = 100000 };

struct block {
    unsigned char *at;
    size_t size;
};

struct table {
    struct block slot[THREADS][SLOTS];
    size_t kept;
    struct block keep[KEPT];
};

struct table *table; // the root

static _Atomic bool stop, paused;
static _Atomic unsigned resting;
static _Atomic unsigned long operations[THREADS], nulls;

__attribute__((noreturn)) static void wrong(const char *what) {
    printf("wrong %s\n", what);
    fflush(stdout);
    _exit(1);
}

static unsigned char mark(const struct block *b) { return (unsigned char)(b->size * 31 + 7); }

static bool good(const struct block *b) {
    if (!b->at)
        return true;
    for (size_t i = 0; i < b->size; i += i < 64 ? 1 : 512)
        if (b->at[i] != mark(b))
            return false;
    return b->at[b->size - 1] == mark(b);
}

static struct block block_new(size_t size) {
    struct block b = {malloc(size), size};
    if (b.at)
        memset(b.at, mark(&b), size);
    else if (errno != ENOMEM)
        wrong("errno of a NULL");
    else
        nulls++;
    return b;
}

// ---- the load -----------------------------------------------------------------------------------

static void *worker(void *argument) {
    unsigned me = (unsigned)(uintptr_t)argument;
    uint64_t rng = me + 1;
    while (!stop) {
        if (paused) {
            resting++;
            while (paused && !stop)
                usleep(100);
            resting--;
        }
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        struct block *b = &table->slot[me][(rng >> 33) % SLOTS];
        if (!good(b))
            wrong("contents of a worker's block");
        unsigned char *old = b->at;
        b->at = NULL;
        free(old);
        *b = block_new(rng >> 60 == 0 ? 17000 + (rng >> 40) % 90000 : 1 + (rng >> 40) % 2000);
        operations[me]++;
    }
    return NULL;
}

// Waits until each thread has done some more, so that the command before ran under load.
static void let_work(void) {
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned long from = operations[i]; operations[i] < from + 2000;)
            usleep(200);
}

static void pause_workers(void) {
    paused = true;
    while (resting < THREADS)
        usleep(100);
}

static void verify(void) {
    pause_workers();
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned i = 0; i < SLOTS; i++)
            if (!good(&table->slot[t][i]))
                wrong("contents of a worker's block");
    for (size_t i = 0; i < table->kept; i++)
        if (!good(&table->keep[i]))
            wrong("contents of a kept block");
    paused = false;
}

// ---- misuse -------------------------------------------------------------------------------------

static void free_badly(char *volatile p) { free(p); }

// No worker may get the block between the two frees, because the second free would then be right.
static void twice(size_t size) {
    char *volatile p = malloc(size);
    pause_workers();
    free_badly(p);
    free_badly(p);
    paused = false;
}

static void inside(size_t size) {
    char *p = malloc(size);
    free_badly(p + 16);
    free_badly(p);
}

static void of_stack(void) {
    char bytes[256] __attribute__((aligned(16)));
    memset(bytes, 1, sizeof bytes);
    free_badly(bytes);
}

static void of_nobody(void) {
    static char bytes[256] __attribute__((aligned(16)));
    free_badly(bytes);
}

static int by_address(const void *a, const void *b) {
    const struct block *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

// Makes adjacent blocks, all its own, and writes over the end of one into the next.
static void overflow(size_t size, size_t by) {
    enum { ROW = 64 };
    struct block row[ROW];
    size_t usable = 0;
    for (int i = 0; i < ROW; i++) {
        row[i] = block_new(size);
        if (!row[i].at)
            return;
        usable = malloc_usable_size(row[i].at);
    }
    qsort(row, ROW, sizeof row[0], by_address);
    for (int i = 0; i + 1 < ROW; i++)
        if (row[i].at + usable == row[i + 1].at) {
            memset(row[i].at + usable, 0xee, by);
            break;
        }
    let_work();
    for (int i = 0; i < ROW; i++)
        free(row[i].at);
}

// ---- commands -----------------------------------------------------------------------------------

static bool grow(size_t megabytes) {
    for (size_t done = 0; done < megabytes << 20 && table->kept < KEPT; done += KEPT_SIZE) {
        struct block b = block_new(KEPT_SIZE);
        if (!b.at)
            return false;
        table->keep[table->kept] = b;
        table->kept++;
    }
    return true;
}

static void drop(void) {
    while (table->kept) {
        unsigned char *p = table->keep[table->kept - 1].at;
        table->kept--;
        free(p);
    }
    malloc_trim(0);
}

// By system calls: close() and its kin spare the descriptors of the heap.
static void close_each(int from) {
    for (int fd = from; fd < 65536; fd++)
        syscall(SYS_close, fd);
}

static void over_all(int from) {
    int null = open("/", O_RDONLY | O_DIRECTORY);
    for (int fd = from; fd < 1024; fd++)
        if (fd != null)
            dup2(null, fd);
}

static void limit_files(size_t megabytes) {
    struct rlimit limit = {megabytes << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        wrong("setrlimit");
}

static bool command(const char *word, size_t a, size_t b, const char *text) {
    if (!strcmp(word, "double"))
        twice(a);
    else if (!strcmp(word, "interior"))
        inside(a);
    else if (!strcmp(word, "foreign"))
        of_nobody();
    else if (!strcmp(word, "stack"))
        of_stack();
    else if (!strcmp(word, "overflow"))
        overflow(a, b);
    else if (!strcmp(word, "grow"))
        return grow(a);
    else if (!strcmp(word, "drop"))
        drop();
    else if (!strcmp(word, "closefrom"))
        close_each((int)a);
    else if (!strcmp(word, "dup2"))
        over_all((int)a);
    else if (!strcmp(word, "chdir") && chdir(text) != 0)
        wrong("chdir");
    else if (!strcmp(word, "fsize"))
        limit_files(a);
    return true;
}

int main(void) {
    static char out[256], in[4096];
    pthread_t id[THREADS];
    setvbuf(stdout, out, _IOLBF, sizeof out);
    setvbuf(stdin, in, _IOLBF, sizeof in);
    if (!table) {
        struct table *t = calloc(1, sizeof *t);
        if (!t)
            return 4;
        table = t;
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&id[i], NULL, worker, (void *)i) != 0)
            return 5;
    verify();
    printf("ready %zu\n", table->kept);
    char line[512], word[64], text[256];
    while (fgets(line, sizeof line, stdin)) {
        size_t a = 0, b = 0;
        text[0] = '\0';
        if (sscanf(line, "%63s %zu %zu", word, &a, &b) < 1 || !strcmp(word, "quit"))
            break;
        sscanf(line, "%*s %255s", text);
        let_work();
        bool all = command(word, a, b, text);
        let_work();
        verify();
        printf("%s %zu\n", all ? "ok" : "null", table->kept);
    }
    stop = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(id[i], NULL);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table of blocks of all sizes, to be shared by many processes (PMALLOC_OPEN=private).
//
//     borrow build MB      makes the table, of about MB megabytes
//     borrow check         checks every block: "ok COUNT"
//     borrow hold          reads every page, prints "ready", waits for the end of its input, checks
//     borrow leave         the same in a forked child, whose parent ends
//     borrow churn SEED    threads store to old blocks, free them and allocate others; a forked
//                          child does, too; neither sees the other. Ends by executing `check`.
//     borrow work SEED     prints "ready" and replaces blocks until it is killed
//     borrow double        frees an old block twice
//     borrow slot          pmalloc.h: a root slot is set and read
//     borrow spawn COMMAND runs the command by the shell, then checks
//
// close_all=1: a constructor first closes all descriptors, as a daemon does.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

extern int pmalloc_set_root(unsigned slot, void *p) __attribute__((weak));
extern void *pmalloc_get_root(unsigned slot) __attribute__((weak));
extern int pmalloc_is_persistent(void) __attribute__((weak));
extern uint64_t pmalloc_generation(void) __attribute__((weak));

struct block {
    uint64_t size, seed;
    uint64_t word[];
};
struct table {
    uint64_t count, generation;
    struct block *block[];
};
struct table *table; // the root

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

// Mostly small, some large, a few huge.
static uint64_t some_size(uint64_t *seed) {
    uint64_t r = next(seed) % 1000;
    uint64_t most = r < 900 ? 512 : r < 985 ? 16000 : r < 999 ? 300000 : 3000000;
    return sizeof(struct block) + next(seed) % most;
}

static void fill(struct block *b, uint64_t size, uint64_t seed) {
    b->size = size;
    b->seed = seed;
    uint64_t words = (size - sizeof *b) / 8, at = seed;
    for (uint64_t i = 0; i < words; i++)
        b->word[i] = next(&at);
}

static struct block *made(uint64_t *seed) {
    uint64_t size = some_size(seed), own = next(seed) | 1;
    struct block *b = malloc(size);
    NEED(b);
    fill(b, size, own);
    return b;
}

static void check_block(const struct block *b) {
    uint64_t words = (b->size - sizeof *b) / 8, at = b->seed;
    for (uint64_t i = 0; i < words; i++)
        NEED(b->word[i] == next(&at));
}

static void check(void) {
    NEED(table);
    for (uint64_t i = 0; i < table->count; i++)
        check_block(table->block[i]);
    printf("ok %lu\n", (unsigned long)table->count);
    fflush(stdout);
}

static void build(uint64_t bytes) {
    uint64_t seed = 88172645463325252u, count = bytes / 5600 + 16;
    struct table *t = calloc(1, sizeof *t + count * sizeof t->block[0]);
    NEED(t && !table);
    for (; t->count < count; t->count++) {
        t->block[t->count] = made(&seed);
        free(malloc(some_size(&seed))); // and what nobody has: free space inside of the file
    }
    t->generation = pmalloc_generation ? pmalloc_generation() : 0;
    table = t;
}

static void hold(void) {
    for (uint64_t i = 0; i < table->count; i++)
        for (uint64_t at = 0; at < table->block[i]->size / 8; at += 512)
            (void)((const volatile uint64_t *)table->block[i])[at];
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    check();
}

__attribute__((constructor)) static void close_all(void) {
    for (int fd = 3; getenv("close_all") && fd < 65536; fd++)
        close(fd);
}

static void leave(void) {
    int ready[2];
    char c;
    NEED(pipe(ready) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child != 0) {
        close(ready[1]);
        _exit(read(ready[0], &c, 1) == 0 ? 0 : 1); // until the child has closed it
    }
    setenv("close_all", "1", 1);
    close_all();
    hold();
}

// ---- churn --------------------------------------------------------------------------------------

enum { THREADS = 4, STEPS = 20000 };

struct share {
    uint64_t from, to, seed;
};

static void *churn_share(void *arg) {
    struct share *s = arg;
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t i = s->from + next(&s->seed) % (s->to - s->from);
        struct block *b = table->block[i];
        check_block(b);
        switch (next(&s->seed) % 4) {
        case 0: // in place
            fill(b, b->size, next(&s->seed) | 1);
            break;
        case 1: { // shorter or longer
            uint64_t size = some_size(&s->seed);
            b = realloc(b, size);
            NEED(b);
            fill(b, size, next(&s->seed) | 1);
            table->block[i] = b;
            break;
        }
        default:
            free(b);
            table->block[i] = made(&s->seed);
        }
    }
    return NULL;
}

static void churn_all(uint64_t seed) {
    pthread_t thread[THREADS];
    struct share share[THREADS];
    for (unsigned t = 0; t < THREADS; t++) {
        share[t] = (struct share){table->count * t / THREADS, table->count * (t + 1) / THREADS,
                                  seed * THREADS + t + 1};
        NEED(pthread_create(&thread[t], NULL, churn_share, &share[t]) == 0);
    }
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    for (uint64_t i = 0; i < table->count; i++)
        check_block(table->block[i]);
}

// Whole at each instant: a new block is filled before it takes the place of the old one.
static void work(uint64_t seed) {
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct block **place = &table->block[next(&seed) % table->count], *old = *place;
        struct block *new = made(&seed);
        __atomic_store_n(place, new, __ATOMIC_RELEASE);
        free(old);
    }
}

static uint64_t digest(void) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < table->count; i++)
        sum = sum * 31 + table->block[i]->seed;
    return sum;
}

static void churn(uint64_t seed) {
    uint64_t before = digest();
    churn_all(seed);
    uint64_t mine = digest();
    NEED(mine != before);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(digest() == mine);
        churn_all(seed + 1000);
        NEED(digest() != mine);
        exit(0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 0);
    NEED(digest() == mine); // the child's stores are its own
    churn_all(seed + 2000);
    execl("/proc/self/exe", "borrow", "check", (char *)NULL);
    _exit(2);
}

// ---- one by one ---------------------------------------------------------------------------------

static void free_twice(void) {
    free(table->block[0]);
    puts("freed");
    fflush(stdout);
    free(table->block[0]);
}

static void slot(void) {
    NEED(pmalloc_set_root && pmalloc_get_root(3) == NULL);
    NEED(pmalloc_set_root(3, table) == 0 && pmalloc_get_root(3) == table);
    NEED(!pmalloc_is_persistent());
    NEED(pmalloc_generation() > table->generation); // another run than that which has built it
    check();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "build") && argc > 2)
        build(strtoull(argv[2], NULL, 10) << 20);
    else if (!strcmp(what, "check"))
        check();
    else if (!strcmp(what, "hold"))
        hold();
    else if (!strcmp(what, "leave"))
        leave();
    else if (!strcmp(what, "churn") && argc > 2)
        churn(strtoull(argv[2], NULL, 10));
    else if (!strcmp(what, "work") && argc > 2)
        work(strtoull(argv[2], NULL, 10));
    else if (!strcmp(what, "double"))
        free_twice();
    else if (!strcmp(what, "slot"))
        slot();
    else if (!strcmp(what, "spawn") && argc > 2) {
        NEED(system(argv[2]) == 0);
        check();
    } else
        return 2;
    return 0;
}

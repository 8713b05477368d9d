// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program at the limits: a full heap, forks, one enormous object, a heap that it holds while
// others want it.
//
//     limits fill SIZE     allocates until NULL, checks, frees, and must then get as much again
//     limits hold          prints "held PID" and waits for the end of its input
//     limits million       builds an object of a million pointers, or checks the one that is there,
//                          and ends by SIGKILL
//     limits fork HOW      HOW is alone, threads or exec; see below
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%d: %s:%d: %s does not hold (errno %d)\n", (int)getpid(), __FILE__,   \
                    __LINE__, #condition, errno);                                                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

// ---- a full heap --------------------------------------------------------------------------------

struct block {
    struct block *next;
    size_t size;
    unsigned char fill[];
};
struct block *blocks; // may be a root

static size_t next_size(size_t size, size_t i) {
    return size ? size : i % 100 ? 16 + i * 7919 % 3000 : 20000 + i * 7919 % 900000;
}

static size_t fill(size_t size, size_t limit) {
    size_t count = 0;
    while (count < limit) {
        size_t bytes = next_size(size, count);
        errno = 0;
        struct block *b = malloc(bytes);
        if (!b) {
            NEED(errno == ENOMEM);
            break;
        }
        memset(b, 0x5a, bytes);
        b->next = blocks;
        b->size = bytes;
        blocks = b;
        count++;
    }
    return count;
}

static size_t release(void) {
    size_t count = 0;
    for (struct block *next; blocks; blocks = next, count++) {
        next = blocks->next;
        for (size_t i = 0; i < blocks->size - sizeof *blocks; i++)
            NEED(blocks->fill[i] == 0x5a);
        free(blocks);
    }
    return count;
}

static int mode_fill(size_t size) {
    size_t first = fill(size, SIZE_MAX), last = first;
    struct block *top = blocks;
    if (top) { // realloc and the others fail like malloc, and harm nothing
        errno = 0;
        NEED(realloc(top, (size_t)300 << 20) == NULL && errno == ENOMEM);
        void *untouched = &first;
        NEED(posix_memalign(&untouched, 4096, (size_t)300 << 20) == ENOMEM && untouched == &first);
        errno = 0;
        NEED(calloc(300, 1 << 20) == NULL && errno == ENOMEM);
        NEED(top->size >= 16 && top->fill[0] == 0x5a);
    }
    for (int round = 0; round < 3; round++) {
        NEED(release() == last);
        malloc_trim(0);
        last = fill(size, SIZE_MAX);
        NEED(last >= first - first / 16);
    }
    printf("%zu\n", first);
    NEED(release() == last);
    return 0;
}

static int mode_grow(size_t size) { // the test kills it
    printf("%zu\n", fill(size, SIZE_MAX));
    fflush(stdout);
    raise(SIGKILL);
    return 1;
}

static int mode_count(void) {
    size_t count = 0;
    for (const struct block *b = blocks; b; b = b->next, count++)
        for (size_t i = 0; i < b->size - sizeof *b; i++)
            NEED(b->fill[i] == 0x5a);
    printf("%zu\n", count);
    return 0;
}

static int mode_release(void) {
    printf("%zu\n", release());
    return 0;
}

static int mode_hold(void) {
    printf("held %d\n", (int)getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}

// ---- a million pointers -------------------------------------------------------------------------

enum { MILLION = 1000000 };
uint64_t **million;

static int mode_million(void) {
    if (!million) {
        uint64_t **fresh = malloc(MILLION * sizeof *fresh);
        NEED(fresh);
        for (uint64_t i = 0; i < MILLION; i++) {
            NEED((fresh[i] = malloc(8 + i % 60)));
            *fresh[i] = i * 3;
            NEED(malloc(24)); // and leaks as many blocks
        }
        million = fresh;
    }
    for (uint64_t i = 0; i < MILLION; i++)
        NEED(*million[i] == i * 3);
    for (uint64_t i = 0; i < MILLION; i++) { // no new block overlaps an old one
        uint64_t *p = malloc(24);
        NEED(p);
        memset(p, 0xff, 24);
    }
    for (uint64_t i = 0; i < MILLION; i++)
        NEED(*million[i] == i * 3);
    puts("a million");
    fflush(stdout);
    raise(SIGKILL);
    return 1;
}

// ---- fork ---------------------------------------------------------------------------------------

struct item {
    struct item *next;
    long value;
    char fill[300];
};
struct item *items; // the root
char *large;        // 1 MiB, reachable from a root of its own
long captured = 5;  // a root without pointers

static struct item *item_new(long value, struct item *next) {
    struct item *i = malloc(sizeof *i);
    NEED(i);
    i->next = next;
    i->value = value;
    memset(i->fill, (int)value, sizeof i->fill);
    return i;
}

static long sum(void) {
    long total = 0;
    for (const struct item *i = items; i; i = i->next) {
        NEED(i->fill[0] == (char)i->value && i->fill[299] == (char)i->value);
        total += i->value;
    }
    return total;
}

static void change_everything(long by) {
    for (struct item *i = items; i; i = i->next) {
        i->value += by;
        memset(i->fill, (int)i->value, sizeof i->fill);
    }
    for (int k = 0; k < 100; k++)
        items = item_new(by, items);
    for (int k = 0; k < 50; k++) {
        struct item *gone = items;
        items = gone->next;
        free(gone);
    }
    memset(large, (int)by, 1 << 20);
    captured += by;
    for (int k = 0; k < 2000; k++) {
        char *p = malloc(16 + (size_t)k * 40);
        NEED(p);
        memset(p, 1, 16 + (size_t)k * 40);
        free(p);
    }
}

static void say(int fd) { NEED(write(fd, "x", 1) == 1); }
static void hear(int fd) {
    char byte;
    NEED(read(fd, &byte, 1) == 1);
}

// Parent and child take turns. Neither may see what the other does.
static void turns(int way) {
    int to_child[2], to_parent[2], status;
    NEED(pipe(to_child) == 0 && pipe(to_parent) == 0);
    long before = sum(), was = captured;
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(sum() == before && captured == was && large[77] == large[78]);
        change_everything(1000);
        long mine = sum();
        say(to_parent[1]);
        hear(to_child[0]); // the parent has changed its own memory meanwhile
        NEED(sum() == mine && captured == was + 1000 && large[77] == (char)1000);
        pid_t grandchild = fork();
        NEED(grandchild >= 0);
        if (grandchild == 0) {
            NEED(sum() == mine);
            change_everything(77);
            exit(0);
        }
        NEED(waitpid(grandchild, &status, 0) == grandchild && status == 0);
        NEED(sum() == mine);
        if (way % 2)
            exit(0);
        _exit(0);
    }
    hear(to_parent[0]);
    NEED(sum() == before && captured == was);
    change_everything(way);
    before = sum();
    say(to_child[1]);
    NEED(waitpid(child, &status, 0) == child);
    NEED(status == 0);
    NEED(sum() == before && captured == was + way && large[77] == (char)way);
    for (int i = 0; i < 2; i++)
        close(to_child[i]), close(to_parent[i]);
}

static _Atomic int stop;
static void *churn(void *argument) {
    uint64_t r = (uintptr_t)argument;
    void *kept[64] = {0};
    while (!stop) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        unsigned k = r >> 58;
        size_t size = (r >> 20) % 40 ? (r >> 30) % 2000 : (r >> 30) % 200000;
        free(kept[k]);
        NEED((kept[k] = malloc(size)) != NULL);
        memset(kept[k], (int)k, size);
    }
    for (int k = 0; k < 64; k++)
        free(kept[k]);
    return NULL;
}

static int mode_fork(const char *how) {
    if (!items) {
        for (long i = 0; i < 5000; i++)
            items = item_new(i, items);
        NEED((large = calloc(1, 1 << 20)));
    }
    printf("%ld %ld %d\n", sum(), captured, large[77]);
    fflush(stdout); // otherwise the children print it again
    pthread_t id[3];
    int threads = !strcmp(how, "threads");
    for (uintptr_t i = 0; threads && i < 3; i++)
        NEED(pthread_create(&id[i], NULL, churn, (void *)(i + 1)) == 0);
    if (!strcmp(how, "exec")) {
        NEED(system("exit 3") == 3 << 8);
        char *argv[] = {"sh", "-c", "exit 4", NULL};
        extern char **environ;
        pid_t child;
        int status;
        NEED(posix_spawnp(&child, "sh", NULL, NULL, argv, environ) == 0);
        NEED(waitpid(child, &status, 0) == child && status == 4 << 8);
        FILE *out = popen("echo from the child", "r");
        char line[64] = "";
        NEED(out && fgets(line, sizeof line, out) && !strcmp(line, "from the child\n"));
        NEED(pclose(out) == 0);
        change_everything(1);
    } else {
        for (int way = 1; way <= 6; way++)
            turns(way);
    }
    stop = 1;
    for (int i = 0; threads && i < 3; i++)
        pthread_join(id[i], NULL);
    printf("%ld %ld %d\n", sum(), captured, large[77]);
    return 0;
}

// -------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "0";
    return !strcmp(mode, "fill")      ? mode_fill(strtoul(more, NULL, 10))
           : !strcmp(mode, "grow")    ? mode_grow(strtoul(more, NULL, 10))
           : !strcmp(mode, "count")   ? mode_count()
           : !strcmp(mode, "release") ? mode_release()
           : !strcmp(mode, "hold")    ? mode_hold()
           : !strcmp(mode, "million") ? mode_million()
           : !strcmp(mode, "fork")    ? mode_fork(more)
                                      : 2;
}

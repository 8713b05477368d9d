// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Programs that fork, as ordinary ones do: `forks CASE [MEGABYTES [FILE]]`. The list of blocks, the
// names of the cases, and `forks check TAG`.
#include "forks.h"

#include <sys/wait.h>

struct block *blocks;
long generation;
const char *argument;

// ---- blocks -------------------------------------------------------------------------------------

static long mark_of(const struct block *b, size_t at) { return b->tag * 1000003 + (long)at; }

void fill(struct block *b, long tag) {
    b->tag = tag;
    for (size_t at = PAGE; at + sizeof(long) <= b->size; at += PAGE)
        *(long *)((char *)b + at) = mark_of(b, at);
}

void check_block(const struct block *b, long tag) {
    CHECK(b->tag == tag);
    for (size_t at = PAGE; at + sizeof(long) <= b->size; at += PAGE)
        CHECK(*(const long *)((const char *)b + at) == mark_of(b, at));
}

void add(size_t size, long tag) {
    struct block *b = malloc(size);
    CHECK(b);
    *b = (struct block){.next = blocks, .size = size};
    fill(b, tag);
    blocks = b;
}

// Allocates blocks of every kind: small, large and huge.
void build(size_t megabytes, long tag) {
    static const size_t sizes[] = {64, 200, 3000, 10000, 40000, 150000, 1500000, 5000000};
    size_t total = 0;
    for (unsigned i = 0; total < megabytes * MIB; i++) {
        size_t size = sizes[i % (sizeof sizes / sizeof sizes[0])];
        size = size > megabytes * MIB - total && size > 10000 ? 10000 : size;
        add(size, tag);
        total += size;
    }
    generation = tag;
}

unsigned check_all(long tag) {
    unsigned count = 0;
    for (const struct block *b = blocks; b; b = b->next, count++)
        check_block(b, tag);
    CHECK(generation == tag);
    return count;
}

void fill_all(long tag) {
    for (struct block *b = blocks; b; b = b->next)
        fill(b, tag);
    generation = tag;
}

// Frees every second block, resizes others, gives space back, and allocates as much again.
void churn(long tag) {
    unsigned i = 0;
    size_t freed = 0;
    for (struct block **at = &blocks; *at; i++) {
        struct block *b = *at;
        if (i % 2) {
            freed += b->size;
            *at = b->next;
            free(b);
            continue;
        }
        if (i % 8 == 0 && b->size > 3000) {
            b = realloc(b, b->size + b->size / 2);
            CHECK(b);
            *at = b;
            b->size += b->size / 2;
            fill(b, tag);
        }
        at = &b->next;
    }
    malloc_trim(0);
    while (freed > 5000) {
        size_t size = freed > 300000 ? 250000 : 5000;
        add(size, tag);
        freed -= size;
    }
    for (int round = 0; round < 3; round++) {
        char *p = calloc(1, 3000000);
        for (size_t at = 0; at < 3000000; at += 100)
            CHECK(p[at] == 0);
        memset(p, 1, 3000000);
        free(p);
    }
}

int ended(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

pid_t forked(void) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    return pid;
}

// Waits for one byte from the other process.
void await(int fd) {
    char byte;
    CHECK(read(fd, &byte, 1) == 1);
}
void tell(int fd) { CHECK(write(fd, "", 1) == 1); }

static void check(size_t expected) {
    unsigned count = check_all((long)expected);
    CHECK(count > 0);
    printf("%u blocks of %ld\n", count, generation);
}

static const struct {
    const char *name;
    void (*run)(size_t megabytes);
} cases[] = {
#define CASE(name)                                                                                 \
    { #name, name }
    CASE(isolation),   CASE(orphan),         CASE(stopped),        CASE(traced),
    CASE(closing),     CASE(deep),           CASE(hasty),          CASE(broad),
    CASE(threads),     CASE(sparse),         CASE(exec),           CASE(no_descriptors),
    CASE(no_process),  CASE(no_copier),      CASE(data_limit),     CASE(bare),
    CASE(namespaces),  CASE(signals),        CASE(protect),        CASE(copies),
    CASE(check),       CASE(daemon_single),  CASE(daemon_awaited), CASE(daemon_double),
    CASE(daemon_libc), CASE(daemon_closing), CASE(daemon_threads), CASE(daemon_growing),
    CASE(cloned),      CASE(cancelled),
};

int main(int argc, char **argv) {
    size_t megabytes = argc > 2 ? (size_t)atoi(argv[2]) : 4;
    argument = argc > 3 ? argv[3] : "";
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            if (strcmp(argv[1], "check") != 0)
                blocks = NULL;
            cases[i].run(megabytes);
            return 0;
        }
    fprintf(stderr, "usage: forks CASE [MEGABYTES [FILE]]\n");
    return 2;
}

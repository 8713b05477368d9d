// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What it costs to make dirty pages durable (scripts/commit-bench). Of a large block, or of a
// mapped file, so many pages, evenly spread, get a new word; then all are made durable at once.
//
//   commitcost commit MIB ROUNDS PAGES...       pmalloc_commit(), under the preload
//   commitcost msync MIB ROUNDS FILE PAGES...   msync(MS_SYNC) of a shared mapping of FILE
//   commitcost check MIB ROUNDS PAGES...        a later run: the words are there
//
// Says for each number of pages the mean of the rounds, in microseconds. The library's statistics,
// printed before the rounds of each, say how long the threads were held.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void malloc_stats(void); // musl has none: PMAlloc's serves, under the preload
#pragma weak malloc_stats

int pmalloc_commit(void) __attribute__((weak));

char *memory; // the root

enum { PAGE = 4096 };

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t *word_at(uint64_t bytes, uint64_t pages, uint64_t i) {
    return (uint64_t *)(void *)(memory + bytes / PAGE * i / pages * PAGE);
}

static void *map(const char *path, uint64_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0)
        return MAP_FAILED;
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int commits;

static int make_durable(uint64_t bytes) {
    return commits ? pmalloc_commit() : msync(memory, bytes, MS_SYNC);
}

// No two numbers of pages have the same words.
static uint64_t word_of(uint64_t pages, uint64_t round) { return pages << 16 | round; }

static int check(uint64_t bytes, uint64_t pages, uint64_t rounds) {
    for (uint64_t i = 0; i < pages; i++)
        if (!memory || *word_at(bytes, pages, i) != word_of(pages, rounds))
            return 1;
    return 0;
}

static int measure(uint64_t bytes, uint64_t pages, uint64_t rounds) {
    uint64_t took = 0;
    for (uint64_t round = 0; round <= rounds; round++) {
        if (round == 1 && commits)
            malloc_stats();
        for (uint64_t i = 0; i < pages; i++)
            *word_at(bytes, pages, i) = word_of(pages, round);
        uint64_t begun = now();
        if (make_durable(bytes) != 0)
            return 1;
        took += round ? now() - begun : 0; // the first round warms up
    }
    if (commits)
        malloc_stats();
    printf("%lu\n", (unsigned long)(took / rounds));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    uint64_t bytes = strtoull(argv[2], NULL, 10) << 20, rounds = strtoull(argv[3], NULL, 10);
    if (strcmp(argv[1], "check") == 0) // what came last is there
        return check(bytes, strtoull(argv[argc - 1], NULL, 10), rounds);
    commits = strcmp(argv[1], "commit") == 0;
    if (rounds < 1 || (commits && !pmalloc_commit))
        return 2;
    memory = commits ? malloc(bytes) : map(argv[4], bytes);
    if (!memory || memory == MAP_FAILED)
        return 1;
    memset(memory, 1, bytes);
    int status = make_durable(bytes);
    for (int i = commits ? 4 : 5; i < argc && status == 0; i++)
        status = measure(bytes, strtoull(argv[i], NULL, 10), rounds);
    return status;
}

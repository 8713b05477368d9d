// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that survives malloc returning NULL. Every request may fail; no block that it has may
// change.
//
//   faults_app run SEED     changes the blocks of `state`, forks once, and prints
//                           "done nulls=N blocks=B sum=X"
//   faults_app kill SEED    does the same, then kills itself
//   faults_app daemon SEED  closes what it inherited, does the same, and closes again at its end
//   faults_app check        prints "done nulls=0 blocks=B sum=X"; status 3 where there is no state
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 100, STEPS = 150, KIND = 8 };

struct block {
    unsigned char *at;
    size_t size;
    uint32_t seed;
};

struct state {
    // 1 + the slot that realloc works on. Wherever the program ends, that block may be the old one,
    // the new one, or neither.
    int moving;
    struct block slot[SLOTS];
};

struct state *state; // the root

static unsigned nulls;
static uint64_t rng;

static uint32_t random_next(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}

__attribute__((noreturn)) static void wrong(const char *what, long number) {
    printf("wrong: %s %ld\n", what, number);
    fflush(stdout);
    exit(1);
}

// Only the ends of a block and one byte per page, so that huge blocks stay mostly untouched.
static size_t next(size_t at, size_t size) {
    return at < 64 || at + 64 >= size ? at + 1 : at + 4001 < size - 64 ? at + 4001 : size - 64;
}

static unsigned char byte_of(size_t at, uint32_t seed) {
    return (unsigned char)((at * 2654435761u ^ seed) >> 5);
}

static void fill(struct block *b) {
    for (size_t at = 0; at < b->size; at = next(at, b->size))
        b->at[at] = byte_of(at, b->seed);
}

// Checks the whole block, or its first `size` bytes where that is less.
static bool good(const struct block *b, size_t size) {
    if (size < b->size && size > 64)
        size = 64;
    else if (size > b->size)
        size = b->size;
    for (size_t at = 0; at < size; at = size == b->size ? next(at, size) : at + 1)
        if (b->at[at] != byte_of(at, b->seed))
            return false;
    return true;
}

static size_t some_size(void) {
    static const size_t base[KIND] = {16, 200, 3000, 12000, 20000, 70000, 300000, 2100000};
    uint32_t r = random_next();
    size_t kind = r % 32 == 0 ? 7 : r % 16 == 1 ? 6 : r % 6;
    return base[kind] + random_next() % (kind < 7 ? base[kind] : 100000);
}

static bool failed(const void *p) {
    if (p)
        return false;
    if (errno != ENOMEM)
        wrong("errno of a NULL is", errno);
    nulls++;
    return true;
}

static void replace(struct block *b) {
    struct block fresh = {.size = some_size(), .seed = random_next()};
    switch (random_next() % 4) {
    case 0:
        fresh.at = calloc(1, fresh.size);
        for (size_t i = 0; fresh.at && i < fresh.size; i = next(i, fresh.size))
            if (fresh.at[i])
                wrong("calloc left a byte at", (long)i);
        break;
    case 1:
        fresh.at = aligned_alloc(256, (fresh.size + 255) / 256 * 256);
        break;
    default:
        fresh.at = malloc(fresh.size);
    }
    if (failed(fresh.at))
        return;
    fill(&fresh);
    unsigned char *old = b->at;
    *b = fresh;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    free(old);
}

static void resize(struct block *b) {
    size_t size = random_next() % 3 ? some_size() : b->size * 2;
    *(volatile int *)&state->moving = (int)(b - state->slot) + 1;
    unsigned char *p = realloc(b->at, size);
    if (p)
        b->at = p;
    *(volatile int *)&state->moving = 0;
    if (failed(p))
        return;
    if (!good(b, size < b->size ? size : b->size))
        wrong("realloc changed block", (long)(b - state->slot));
    b->size = size;
    fill(b);
}

static void verify(void) {
    for (int i = 0; i < SLOTS; i++)
        if (state->slot[i].at && i + 1 != state->moving &&
            !good(&state->slot[i], state->slot[i].size))
            wrong("contents of block", i);
}

static void work(void) {
    for (int i = 0; i < STEPS; i++) {
        struct block *b = &state->slot[random_next() % SLOTS];
        uint32_t r = random_next() % 8;
        if (!b->at || r < 4) {
            replace(b);
        } else if (r < 6) {
            resize(b);
        } else {
            unsigned char *old = b->at;
            b->at = NULL;
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            free(old);
        }
    }
    malloc_trim(0);
}

// Forks. The child gets a copy of its own, or the fork is refused.
static void bear(void) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return;
    if (child == 0) {
        verify();
        void *p = malloc(100000);
        if (!failed(p))
            memset(p, 1, 100000);
        for (int i = 0; i < SLOTS; i++)
            if (state->slot[i].at)
                state->slot[i].at[0] ^= 255; // the parent must not see this
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            wrong("waitpid", errno);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 125))
        wrong("the child's status is", status);
}

// Closes all descriptors but the standard ones and the log of faults.c.
static void close_all(void) {
    for (int fd = 3; fd < 1100; fd++)
        if (fd != 900)
            close(fd);
}

static int report(void) {
    uint64_t sum = 0;
    int blocks = 0;
    for (int i = 0; i < SLOTS; i++)
        if (state->slot[i].at) {
            blocks++;
            sum += (uint64_t)(i + 1) * (state->slot[i].seed + state->slot[i].size);
        }
    verify();
    printf("done nulls=%u blocks=%d sum=%llx\n", nulls, blocks, (unsigned long long)sum);
    return 0;
}

int main(int argc, char **argv) {
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return state ? report() : 3;
    if (argc != 3)
        return 2;
    rng = strtoull(argv[2], NULL, 10);
    if (!state) {
        struct state *fresh = calloc(1, sizeof *fresh);
        if (failed(fresh))
            return 4;
        state = fresh;
    }
    verify();
    if (state->moving)
        state->slot[state->moving - 1].at = NULL; // this block leaks
    state->moving = 0;
    bool daemon_like = strcmp(argv[1], "daemon") == 0;
    if (daemon_like)
        close_all();
    work();
    bear();
    work();
    if (daemon_like)
        close_all();
    int status = report();
    fflush(stdout);
    if (strcmp(argv[1], "kill") == 0)
        raise(SIGKILL);
    return status;
}

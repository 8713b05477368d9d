// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The hot path and nothing else: COUNT times malloc and free of a block of SIZE bytes, with DEPTH of
// them held at a time. Warm after the first round, so two runs that differ only in COUNT differ by
// COUNT pairs; scripts/callgrind-pair counts instructions that way. SIZE 0 runs the loop without the
// calls, which is what has to be subtracted. Without arguments it times some sizes.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH_LIMIT = 4096, WARM_UP = 10000 };

// The compiler must take the pointer for used, or it drops the pair.
#define USE(p) __asm__ volatile("" : "+r"(p) : : "memory")

static void *held[DEPTH_LIMIT];

static void pairs(unsigned long count, size_t size) {
    for (unsigned long i = 0; i < count; i++) {
        void *p = malloc(size);
        USE(p);
        free(p);
    }
}

static void pairs_held(unsigned long count, size_t size, unsigned depth) {
    for (unsigned long done = 0; done < count; done += depth) {
        for (unsigned i = 0; i < depth; i++) {
            void *p = malloc(size);
            USE(p);
            held[i] = p;
        }
        for (unsigned i = 0; i < depth; i++)
            free(held[i]);
    }
}

// The two loops above without their calls.
static void loop_only(unsigned long count, unsigned depth) {
    void *p = NULL;
    for (unsigned long i = 0; depth == 1 && i < count; i++)
        USE(p);
    for (unsigned long done = 0; depth > 1 && done < count; done += depth) {
        for (unsigned i = 0; i < depth; i++) {
            USE(p);
            held[i] = p;
        }
        for (unsigned i = 0; i < depth; i++) {
            p = held[i];
            USE(p);
        }
    }
}

static void run(unsigned long count, size_t size, unsigned depth) {
    if (size == 0)
        loop_only(count, depth);
    else if (depth == 1)
        pairs(count, size);
    else
        pairs_held(count, size, depth);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double nanoseconds(size_t size, unsigned depth) {
    enum { COUNT = 4 << 20 };
    run(WARM_UP, size, depth);
    double start = seconds();
    run(COUNT, size, depth);
    return (seconds() - start) / COUNT * 1e9;
}

static void time_some(void) {
    static const size_t sizes[] = {16, 64, 256, 1024, 8192};
    printf("ns a malloc+free pair\n%8s %10s %10s\n", "bytes", "1 held", "32 held");
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        printf("%8zu %10.2f %10.2f\n", sizes[i], nanoseconds(sizes[i], 1),
               nanoseconds(sizes[i], 32));
}

static unsigned long number(const char *text, unsigned long limit) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || value > limit) {
        fprintf(stderr, "pair: %s is not a number up to %lu\n", text, limit);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv) {
    if (argc == 1) {
        time_some();
        return 0;
    }
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: pair [COUNT SIZE [DEPTH]]\n");
        return 2;
    }
    unsigned long count = number(argv[1], 1UL << 40);
    size_t size = number(argv[2], 1UL << 30);
    unsigned depth = argc > 3 ? (unsigned)number(argv[3], DEPTH_LIMIT) : 1;
    if (depth == 0) {
        fprintf(stderr, "pair: DEPTH is at least 1\n");
        return 2;
    }
    run(WARM_UP, size, depth);
    run(count, size, depth);
    return 0;
}

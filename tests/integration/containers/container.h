// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What all containers of other projects share, for test_containers.py. Each file has `store`, its
// root; fill() puts 0 .. n-1 into a new container; check() says whether these are there and nothing
// else, however often it is called.
//
//   CONTAINER fill N     says "filled", and waits for its end
//   CONTAINER check N    checks, gets as much memory again and fills it, and checks again
#ifndef CONTAINER_H
#define CONTAINER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fill(size_t n);
static int check(size_t n);

// What is free by mistake is overwritten.
static void allocate(size_t n) {
    for (size_t i = 0; i < 4 * n; i++) {
        size_t size = 16u << (i & 3);
        void *p = malloc(size);
        if (p)
            memset(p, 0xa5, size);
    }
}

static int complain(const char *when, size_t n) {
    printf("%s: not all of %zu are there\n", when, n);
    return 1;
}

int main(int argc, char **argv) {
    size_t n = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (n && strcmp(argv[1], "fill") == 0) {
        fill(n);
        if (!check(n))
            return complain("filled", n);
        puts("filled");
        fflush(stdout);
        for (;;)
            pause();
    }
    if (!check(n))
        return complain("found", n);
    allocate(n);
    if (!check(n))
        return complain("after allocations", n);
    printf("all %zu\n", n);
    fflush(stdout);
    _exit(0);
}

#endif

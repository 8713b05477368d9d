// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A block grows by realloc in equal steps, and after each step another block is allocated. Every
// byte is checked at the end. Prints the steps, how often the block moved, and the peak of memory.
//
//   grow STEP_KIB TOTAL_KIB        until it has the length
//   grow STEP_KIB 0                until memory is out
//   grow check STEP_KIB            the next start: the block is as it was
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char *root; // the buffer
static size_t length;

static char byte_of(size_t at, size_t step) { return (char)(at / step + 1); }

static int check(size_t step) {
    size_t bad = 0;
    for (size_t i = 0; i < length; i++)
        bad += root[i] != byte_of(i, step);
    if (bad)
        printf("%zu of %zu bytes are wrong\n", bad, length);
    return bad != 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "check") == 0) {
        printf("%zu\n", length >> 10);
        return check(strtoul(argv[2], NULL, 10) << 10);
    }
    size_t step = strtoul(argv[1], NULL, 10) << 10, total = strtoul(argv[2], NULL, 10) << 10;
    unsigned long steps = 0, moves = 0;
    while (!total || length < total) {
        char *p = realloc(root, length + step);
        if (!p)
            break;
        moves += p != root;
        steps++;
        memset(p + length, byte_of(length, step), step);
        root = p;
        length += step;
        if (!malloc(64 << 10))
            break;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%lu steps %lu moves %ld KiB\n", steps, moves, usage.ru_maxrss);
    return check(step);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks that are known only by the address one past their end, as stacks that grow down are, for
// test_forms.py.
//
//   ends make SIZE N    makes N of them, behind each one that it frees, and kills itself
//   ends clean SIZE N   the same, and ends
//   ends look SIZE N    allocates as much again, and says how many of them have their contents
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned char **tops; // the root

static void make(size_t size, size_t n) {
    unsigned char **behind = calloc(n, sizeof *behind), **made = calloc(n, sizeof *made);
    for (size_t i = 0; i < n; i++) {
        unsigned char *p = malloc(size);
        behind[i] = malloc(size);
        memset(p, (int)(i % 100 + 1), size);
        memset(behind[i], 0xaa, size);
        made[i] = p + size;
    }
    for (size_t i = 0; i < n; i++)
        free(behind[i]);
    memset(behind, 0, n * sizeof *behind);
    free(behind);
    tops = made;
}

static void look(size_t size, size_t n) {
    size_t right = 0;
    for (size_t i = 0; i < 2 * n; i++)
        memset(malloc(size), 0xee, size);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *p = tops[i] - size;
        size_t same = 0;
        while (same < size && p[same] == i % 100 + 1)
            same++;
        right += same == size;
    }
    printf("%zu\n", right);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t size = strtoul(argv[2], NULL, 10), n = strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "look") == 0) {
        look(size, n);
        return 0;
    }
    make(size, n);
    if (strcmp(argv[1], "make") == 0)
        raise(SIGKILL);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
//   huge_pages ROUNDS    asks for huge pages in a block of 32 MiB, and stores a byte to each, in a
//                        place of the round's own, before each commit. Says how much of the
//                        process lies in huge pages, and is killed. The next run checks all bytes.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../preload/pmalloc.h"

#define HUGE ((size_t)2 << 20)
#define BYTES (16 * HUGE)
#define AT(round) (4096 * (7 + 2 * (size_t)(round)) + 99)

struct store {
    char *bytes;
    int rounds;
};
struct store *root;

static char expected(size_t at, int rounds) {
    size_t of = at % HUGE;
    int round = of % 8192 == AT(0) % 8192 ? (int)(of / 8192) - 3 : -1;
    return round >= 0 && round < rounds ? 'a' : 0;
}

static int check(void) {
    for (size_t at = 0; at < BYTES; at++)
        if (root->bytes[at] != expected(at, root->rounds)) {
            printf("%zu is wrong\n", at);
            return 1;
        }
    printf("%d rounds\n", root->rounds);
    return 0;
}

static void say_huge(void) {
    char line[256];
    long kb = 0;
    FILE *maps = fopen("/proc/self/smaps_rollup", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strncmp(line, "AnonHugePages:", 14) == 0)
            kb = atol(line + 14);
    printf("%ld\n", kb);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 0;
    if (root)
        return check();
    root = calloc(1, sizeof *root);
    root->bytes = aligned_alloc(HUGE, BYTES);
    if (madvise(root->bytes, BYTES, MADV_HUGEPAGE) != 0 || pmalloc_commit() != 0)
        return 2;
    for (; root->rounds < rounds;) {
        for (size_t at = AT(root->rounds); at < BYTES; at += HUGE)
            root->bytes[at] = 'a';
        if (!root->rounds)
            say_huge();
        root->rounds++;
        if (pmalloc_commit() != 0)
            return 3;
    }
    raise(SIGKILL);
    return 4;
}

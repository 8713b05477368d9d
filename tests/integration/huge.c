// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A huge block of so many MiB, which is stored to after a line was read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *huge;

int main(int argc, char **argv) {
    size_t size = argc > 1 ? (size_t)atoi(argv[1]) << 20 : 0;
    huge = malloc(size);
    puts(huge ? "ready" : "none");
    fflush(stdout);
    if (huge && getchar() != EOF)
        memset(huge, 1, size);
    return 0;
}

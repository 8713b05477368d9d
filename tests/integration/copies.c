// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program with a child, for test_copies.py. Both keep a number, say who they are, and wait.
//
//   copies wait    the parent keeps 1, the child 2
//   copies show    prints the number
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

long *kept;

int main(int argc, char **argv) {
    if (!kept && !(kept = calloc(1, sizeof *kept)))
        return 1;
    if (argc > 1 && strcmp(argv[1], "show") == 0) {
        printf("%ld\n", *kept);
        return 0;
    }
    pid_t child = fork();
    *kept = child ? 1 : 2;
    printf("%d\n", (int)getpid());
    fflush(stdout);
    pause();
    return 0;
}

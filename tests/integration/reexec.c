// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Executes itself again and again. Each time it has children that have just started and not
// executed yet.
//
//   reexec GENERATIONS
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;
long *generations;

int main(int argc, char **argv) {
    int left = argc == 2 ? atoi(argv[1]) : 0;
    if (!generations)
        generations = calloc(1, sizeof *generations);
    ++*generations;
    char *sleep_argv[] = {"sleep", "0.01", NULL};
    for (int i = 0; i < 3; i++) {
        pid_t pid;
        posix_spawnp(&pid, "sleep", NULL, NULL, sleep_argv, environ);
    }
    if (left == 0) {
        printf("%ld\n", *generations);
        return 0;
    }
    char next[16];
    snprintf(next, sizeof next, "%d", left - 1);
    execl("/proc/self/exe", argv[0], next, (char *)NULL);
    return 1;
}

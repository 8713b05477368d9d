// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What making a process costs with a heap of so many megabytes: `forkcost MEGABYTES ROUNDS`. It
// prints a line for each way of making one: the way, the median of the microseconds, the page
// faults of parent and children per round. The time ends when the child has ended. For `fork`,
// whose child goes on, it ends when fork() returns in the parent.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

extern char **environ;
static char *const arguments[] = {"true", NULL};
static int started[2]; // a child that goes on waits at this pipe

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void reap(pid_t pid) {
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "forkcost: a child failed\n");
        exit(1);
    }
}

static double fork_exec(void) {
    double start = now_us();
    pid_t pid = fork();
    if (pid == 0) {
        execve("/bin/true", arguments, environ);
        _exit(127);
    }
    reap(pid);
    return now_us() - start;
}

static double fork_exit(void) {
    double start = now_us();
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    reap(pid);
    return now_us() - start;
}

// How long fork() takes in the parent while the child goes on.
static double fork_lives(void) {
    char byte;
    if (pipe(started) != 0)
        exit(1);
    double start = now_us();
    pid_t pid = fork();
    if (pid == 0) {
        close(started[1]);
        _exit((int)read(started[0], &byte, 1));
    }
    double took = now_us() - start;
    close(started[0]);
    close(started[1]);
    reap(pid);
    return took;
}

static double spawn(void) {
    pid_t pid;
    double start = now_us();
    if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) != 0)
        exit(1);
    reap(pid);
    return now_us() - start;
}

static double vfork_exec(void) {
    double start = now_us();
    pid_t pid = vfork();
    if (pid == 0) {
        execve("/bin/true", arguments, environ);
        _exit(127);
    }
    reap(pid);
    return now_us() - start;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static long faults(void) {
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return self.ru_minflt + children.ru_minflt;
}

static void measure(const char *name, double (*way)(void), int rounds) {
    double *took = malloc((size_t)rounds * sizeof *took);
    way();
    long before = faults();
    for (int i = 0; i < rounds; i++)
        took[i] = way();
    long after = faults();
    qsort(took, (size_t)rounds, sizeof *took, by_size);
    printf("%s %.1f %ld\n", name, took[rounds / 2], (after - before) / rounds);
    free(took);
}

int main(int argc, char **argv) {
    size_t megabytes = argc > 1 ? (size_t)atoi(argv[1]) : 10, total = 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 21;
    if (rounds < 1)
        return 2;
    // by turns 100,000 bytes in blocks of 104 bytes and one block of 100,000 bytes
    static void **kept;
    while (total < megabytes * MIB) {
        size_t size = total / 100000 % 2 ? 100000 : 104;
        void **block = malloc(size);
        if (!block)
            return 1;
        memset(block, 1, size);
        *block = kept;
        kept = block;
        total += size;
    }
    measure("fork+exec", fork_exec, rounds);
    measure("fork+_exit", fork_exit, rounds);
    measure("fork", fork_lives, rounds);
    measure("posix_spawn", spawn, rounds);
    measure("vfork+exec", vfork_exec, rounds);
    return 0;
}

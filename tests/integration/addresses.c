// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Limits its addresses (RLIMIT_AS), makes threads, takes memory until there is none, forks and
// executes. Prints what it finds, which is the same with each malloc.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT (160ull << 20)
#define PIECE (1u << 20)

char *root;

static void *nothing(void *unused) { return unused; }

static int threads(int count) {
    int made = 0;
    pthread_t thread;
    while (count-- && pthread_create(&thread, NULL, nothing, NULL) == 0) {
        pthread_join(thread, NULL);
        made++;
    }
    return made;
}

static void say_limit(const char *who) {
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    printf("%s %llu\n", who, (unsigned long long)limit.rlim_cur);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct rlimit limit;
    if (argc > 1) {
        say_limit("executed");
        return threads(5);
    }
    root = malloc(100);
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = LIMIT;
    printf("set %d\n", setrlimit(RLIMIT_AS, &limit));
    say_limit("own");
    printf("threads %d\n", threads(20));
    unsigned got = 0;
    for (char *p; got < 1000 && (p = malloc(PIECE)) != NULL; got++)
        p[0] = p[PIECE - 1] = 1;
    printf("%s\n", got > 40 && got <= LIMIT / PIECE ? "as much as is allowed" : "wrong");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        printf("child %d\n", threads(1));
        fflush(stdout);
        execl(argv[0], argv[0], "executed", (char *)NULL);
        _exit(9);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("status %d\n", WEXITSTATUS(status));
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Limits its threads (RLIMIT_NPROC), makes them until it cannot, and executes. Prints what it
// finds, which is the same with each malloc. Not for root, whom the kernel does not limit.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST 8
#define HARD 12

char *root;

static pthread_barrier_t end;

static void *waits(void *unused) {
    pthread_barrier_wait(&end);
    return unused;
}

static void say_limit(const char *who) {
    struct rlimit limit;
    getrlimit(RLIMIT_NPROC, &limit);
    printf("%s %d %d\n", who, (int)limit.rlim_cur, (int)limit.rlim_max);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const struct rlimit limit = {MOST, HARD}, wrong = {HARD, MOST};
    pthread_t thread[MOST + 1];
    int made = 0, error = 0;
    if (argc > 1) {
        say_limit("executed");
        return 0;
    }
    root = malloc(100);
    printf("wrong %d\n", setrlimit(RLIMIT_NPROC, &wrong));
    printf("set %d\n", setrlimit(RLIMIT_NPROC, &limit));
    say_limit("own");
    pthread_barrier_init(&end, NULL, MOST);
    while (made <= MOST && (error = pthread_create(&thread[made], NULL, waits, NULL)) == 0)
        made++;
    printf("threads %d, %s\n", made, strerror(error));
    fflush(stdout);
    if (made == MOST - 1) // this one is counted, too
        pthread_barrier_wait(&end);
    for (int i = 0; i < made && made == MOST - 1; i++)
        pthread_join(thread[i], NULL);
    execl(argv[0], argv[0], "executed", (char *)NULL);
    return 9;
}

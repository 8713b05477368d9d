// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts on the lowest free number, as programs do that set up their descriptors: closes 0, 1, 2
// and opens files, and takes it that they have these numbers.
// lowest ROUNDS [wait] [threads] [fork]: prints how often it was another one. ROUNDS 0: until a
// SIGTERM. `wait`: it waits for a moment in each round. `threads`: beside others, which wait.
// `fork`: in a child.
// lowest check: prints what the root holds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define OUT 700 // where what 1 was is kept

struct node {
    struct node *next;
    long number;
} * root;

static volatile sig_atomic_t over;
static long wrong, first_wrong[2];

static void end(int number) {
    (void)number;
    over = 1;
}

static void is(int fd, int expected) {
    if (fd != expected && !wrong++)
        first_wrong[0] = expected, first_wrong[1] = fd;
    if (fd >= 0 && fd != expected) {
        dup2(fd, expected);
        close(fd);
    }
}

static void round_once(int tells) {
    int pair[2];
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    for (int fd = 0; fd < 3; fd++)
        is(open("/dev/null", O_RDWR), fd);
    is(dup(0), 3);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
        is(pair[0], 4);
        is(pair[1], 5);
        if (tells && (write(4, "x", 1) != 1 || read(5, &tells, 1) != 1)) // a reason for a commit
            wrong++;
    }
    for (int fd = 3; fd < 6; fd++)
        close(fd);
}

static void *waits(void *unused) {
    (void)unused;
    for (;;)
        poll(NULL, 0, 50);
    return NULL;
}

static void work(long rounds, int wait, int threads) {
    pthread_t thread;
    for (int i = 0; threads && i < THREADS; i++)
        pthread_create(&thread, NULL, waits, NULL);
    for (long i = 0; !over && (!rounds || i < rounds); i++) {
        struct node *node = malloc(sizeof *node);
        *node = (struct node){root, i};
        if (root) { // two are kept
            free(root->next);
            root->next = NULL;
        }
        root = node;
        round_once(i % 8 == 0);
        if (wait)
            poll(NULL, 0, i % 4 == 0);
    }
    dprintf(OUT, "wrong %ld", wrong);
    if (wrong)
        dprintf(OUT, ", the first: %ld and not %ld", first_wrong[1], first_wrong[0]);
    dprintf(OUT, "\n");
}

int main(int argc, char **argv) {
    int wait = 0, threads = 0, forks = 0;
    if (argc > 1 && !strcmp(argv[1], "check")) {
        printf("%s\n", root ? "some" : "nothing");
        return 0;
    }
    for (int i = 2; i < argc; i++) {
        wait |= !strcmp(argv[i], "wait");
        threads |= !strcmp(argv[i], "threads");
        forks |= !strcmp(argv[i], "fork");
    }
    signal(SIGTERM, end);
    dup2(1, OUT);
    for (int fd = 3; fd < OUT; fd++)
        close(fd);
    if (forks) {
        int status = 1;
        pid_t child = fork();
        if (child != 0)
            return waitpid(child, &status, 0) != child || status != 0;
    }
    work(argc > 1 ? atol(argv[1]) : 1, wait, threads);
    return wrong != 0;
}

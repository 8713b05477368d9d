// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// For test_jail.py: a server with threads that loses sight of /proc once it is set up, and goes on.
//
//   jail HOW ROUNDS    HOW: none, chroot (into ./jail), landlock (no right on any file)
//
// Prints what it has found ("found A B"), "jailed", then "at A" ROUNDS times, and "ok". A - B is 0
// or 1 at any instant; each is in a page of its own. Threads of both kinds wait meanwhile, in calls
// that a signal would end: each such end is said. One handler of the program's does run. 77: this
// kernel, or this user, cannot do it.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define CREATE_RULESET 444
#define RESTRICT_SELF 446
#define FILE_RIGHTS ((1ull << 13) - 1)

struct state {
    volatile long a;
    char between[8192];
    volatile long b;
} * state;

static int ends[2];
static pthread_barrier_t begun;
static volatile sig_atomic_t handled, ending;

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void *polls(void *arg) {
    struct pollfd fd = {.fd = ends[0], .events = POLLIN};
    pthread_barrier_wait(&begun);
    if (poll(&fd, 1, 60000) != 1)
        fail("poll");
    return arg;
}

static int epolls(void *arg) {
    struct epoll_event event = {.events = EPOLLIN};
    int fd = *(int *)arg;
    pthread_barrier_wait(&begun);
    if (epoll_wait(fd, &event, 1, 60000) != 1)
        fail("epoll_wait");
    return 0;
}

static void *works(void *arg) {
    struct timespec pause = {0, 100000};
    pthread_barrier_wait(&begun);
    for (;;) {
        state->a++;
        free(memset(malloc(1000), 1, 1000));
        state->b++;
        if (nanosleep(&pause, NULL) != 0 && !ending) // the end of a program may interrupt others
            fail("nanosleep");
    }
    return arg;
}

static void on_signal(int number) { handled += number == SIGUSR1; }

// A handler that interrupts a sleeping call makes the mark of the thread (calls.h) go.
static void *is_interrupted(void *arg) {
    char byte;
    pthread_barrier_wait(&begun);
    if (read(ends[0], &byte, 1) != 1) // repeated by the kernel: SA_RESTART
        fail("read");
    return arg;
}

static void enter_jail(const char *how) {
    uint64_t rights = FILE_RIGHTS;
    if (strcmp(how, "chroot") == 0) {
        mkdir("jail", 0700);
        if (chroot("jail") != 0 || chdir("/") != 0)
            exit(77);
    }
    if (strcmp(how, "landlock") == 0) {
        int fd = (int)syscall(CREATE_RULESET, &rights, sizeof rights, 0);
        if (fd < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            syscall(RESTRICT_SELF, fd, 0) != 0)
            exit(77);
        close(fd);
    }
    if (strcmp(how, "none") != 0 && fopen("/proc/self/stat", "r"))
        exit(77);
}

static void fork_once(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        state->a = -1;
        free(memset(malloc(100000), 1, 100000));
        _exit(7);
    }
    if (waitpid(child, &status, 0) != child || status != 7 << 8)
        fail("the child");
}

static void say(const char *text, long number) {
    printf("%s %ld\n", text, number);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t thread[3];
    thrd_t other;
    int rounds = argc > 2 ? atoi(argv[2]) : 10;
    if (!state)
        state = calloc(1, sizeof *state);
    printf("found %ld %ld\n", state->a, state->b);
    fflush(stdout);
    if (rounds == 0)
        return 0;
    state->b = state->a;
    int at = epoll_create1(0), made = 0;
    if (pipe(ends) != 0 || epoll_ctl(at, EPOLL_CTL_ADD, ends[0], &event) != 0)
        fail("pipe");
    sigaction(SIGUSR1, &action, NULL);
    pthread_barrier_init(&begun, NULL, 5);
    made += pthread_create(&thread[0], NULL, works, NULL) == 0;
    made += pthread_create(&thread[1], NULL, polls, NULL) == 0;
    made += pthread_create(&thread[2], NULL, is_interrupted, NULL) == 0;
    made += thrd_create(&other, epolls, &at) == thrd_success;
    if (made != 4)
        fail("threads");
    pthread_barrier_wait(&begun);
    enter_jail(argv[1]);
    say("jailed", state->a);
    for (int i = 0; i < rounds; i++) {
        for (long before = state->a; state->a < before + 20;)
            usleep(1000);
        if (i == 1)
            pthread_kill(thread[2], SIGUSR1);
        if (i % 5 == 2)
            fork_once();
        say("at", state->a);
    }
    if (!handled)
        fail("no signal");
    (void)!write(ends[1], "..", 2);
    pthread_join(thread[1], NULL);
    pthread_join(thread[2], NULL);
    thrd_join(other, NULL);
    ending = 1;
    puts("ok");
    fflush(stdout);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that calls exit() again while it ends. A destructor, and a handler that a constructor
// has registered, spoil what it keeps. It is built twice: as the program, and as a library that the
// program's constructor loads.
//
//     twice MODE [LIBRARY]    prints how often it has run, ends with status 7
//
// Exit status 3: something is spoilt.
#ifdef LIBRARY
#include <stdlib.h>

static void nothing(void) {}
__attribute__((constructor)) static void on_load(void) { atexit(nothing); }
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

struct kept {
    int runs, by_destructor[1000], by_handler[1000];
} * kept;

static void *library;
static atomic_bool ending;

static void must(int good) {
    if (!good) {
        perror("twice");
        _exit(9);
    }
}

static void spoil(int *numbers) {
    for (int i = 0; kept && i < 1000; i++)
        numbers[i] = -1;
}

static void spoil_by_handler(void) { spoil(kept->by_handler); }
__attribute__((destructor)) static void spoil_by_destructor(void) { spoil(kept->by_destructor); }

__attribute__((constructor)) static void on_load(int argc, char **argv) {
    must(atexit(spoil_by_handler) == 0);
    if (argc > 2)
        must((library = dlopen(argv[2], RTLD_NOW)) != NULL);
}

static void at_end(void) { ending = true; }

static void leave(int number) {
    (void)number;
    if (ending)
        exit(7);
}

static void *leave_at_end(void *arg) {
    while (!ending)
        usleep(1000);
    usleep(50000);
    exit(7);
    return arg;
}

static void *leave_at_once(void *arg) {
    while (!ending)
        ;
    exit(7);
    return arg;
}

// A thread that prints something now waits for ever.
static void fill_stderr(void) {
    static const char page[4096];
    int ends[2];
    must(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[1], page, sizeof page) > 0)
        ;
    must(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
}

static void start(void *(*run)(void *)) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, run, NULL) == 0);
}

static void check(void) {
    for (int i = 0; i < 1000; i++)
        if (kept->by_destructor[i] != i || kept->by_handler[i] != i)
            _exit(3);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (library)
        must(dlclose(library) == 0);
    if (!kept) {
        kept = calloc(1, sizeof *kept);
        for (int i = 0; i < 1000; i++)
            kept->by_destructor[i] = kept->by_handler[i] = i;
    }
    check();
    printf("%d\n", kept->runs++);
    must(fflush(stdout) == 0 && atexit(at_end) == 0);
    if (strcmp(mode, "handler") == 0) {
        struct itimerval every = {{0, 50000}, {0, 50000}};
        signal(SIGALRM, leave);
        fill_stderr();
        must(setitimer(ITIMER_REAL, &every, NULL) == 0);
    } else if (strcmp(mode, "thread") == 0) {
        fill_stderr();
        start(leave_at_end);
    } else if (strcmp(mode, "threads") == 0) {
        for (int i = 0; i < 4; i++)
            start(leave_at_once);
    }
    return 7;
}
#endif

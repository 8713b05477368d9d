// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that handles SIGBUS itself, and opens a heap by a call that cannot read it.
//
//   bus HEAP FILE [blocked]   FILE is a file of its own, which it cuts while it has it mapped
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "preload/pmalloc.h"

enum { PAGE = 4096 };

static sigjmp_buf back;
static _Atomic int mine;

static void on_bus(int number) {
    (void)number;
    mine++;
    siglongjmp(back, 1);
}

static void must(int good, const char *what) {
    if (good)
        return;
    printf("not so: %s (errno %d)\n", what, errno);
    exit(3);
}

// A fault of the program's own.
static void fault(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600), before = mine;
    must(fd >= 0 && ftruncate(fd, PAGE) == 0, "a file");
    volatile char *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    must(map != MAP_FAILED && ftruncate(fd, 0) == 0, "a mapping");
    if (sigsetjmp(back, 1) == 0)
        (void)*map;
    must(mine == before + 1, "its own handler has run");
    munmap((void *)(uintptr_t)map, PAGE);
    close(fd);
}

int main(int argc, char **argv) {
    const struct sigaction action = {.sa_handler = on_bus};
    struct sigaction now;
    sigset_t bus, mask;
    int blocked = argc > 3;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    sigaction(SIGBUS, &action, NULL);
    fault(argv[2]);
    if (blocked) { // and one is pending
        sigprocmask(SIG_BLOCK, &bus, NULL);
        raise(SIGBUS);
    }
    int status = pmalloc_open(argv[1], PMALLOC_EXISTING), error = errno;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigaction(SIGBUS, NULL, &now);
    must(now.sa_handler == on_bus, "the handler is the program's");
    must(sigismember(&mask, SIGBUS) == blocked, "the mask is the program's");
    if (blocked) {
        sigset_t pending;
        sigpending(&pending);
        must(sigismember(&pending, SIGBUS), "the signal is pending still");
        siginfo_t info;
        must(sigwaitinfo(&bus, &info) == SIGBUS, "and can be fetched");
        sigprocmask(SIG_UNBLOCK, &bus, NULL);
    }
    fault(argv[2]);
    if (status)
        printf("refused: %s\n", strerror(error));
    else
        puts("opened");
    char *block = malloc(100000);
    must(block != NULL, "memory");
    free(block);
    return 0;
}

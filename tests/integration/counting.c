// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library whose constructor starts a thread. The thread counts in a page that holds a root, while
// that page becomes part of the heap. Built twice: as a library and as its program.
//
//     counting        prints the root and adds one to it
//
// Exit status 3: a store of the thread was lost. 4: the thread stands still.
//
// Environment: counting=unheard makes the thread block the signals that libc keeps for itself,
// counting=deaf makes it block all signals.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

long *counting_root(void);
long counting_count(void);
long counting_lost(void);

#ifdef LIBRARY
long root = 1;
static volatile long count = 1, lost = -1; // beside the root

long *counting_root(void) { return &root; }
long counting_count(void) { return count; }
long counting_lost(void) { return lost + 1; }

static void *work(void *arg) {
    const char *how = getenv("counting"); // from the environment
    uint64_t mask = !how ? 0 : strcmp(how, "deaf") == 0 ? ~0ull : 1ull << 32 | 1ull << 33;
    long mine = count, seen;
    if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, sizeof mask) != 0)
        abort();
    for (;;) {
        count = ++mine;
        if ((seen = count) != mine) {
            lost++;
            mine = seen;
        }
    }
    return arg;
}

__attribute__((constructor)) static void begin(void) {
    static pthread_t thread;
    if (((uintptr_t)&root ^ (uintptr_t)&count) >> 12 ||
        ((uintptr_t)&root ^ (uintptr_t)&lost) >> 12 ||
        pthread_create(&thread, NULL, work, NULL) != 0)
        abort();
    while (count < 1000) {
    }
}
#else
int main(void) {
    long before = counting_count();
    for (int i = 0; counting_count() == before; i++) {
        if (i == 10000)
            return 4;
        usleep(100);
    }
    printf("%ld\n", (*counting_root())++);
    fflush(stdout);
    _exit(counting_lost() ? 3 : 0);
}
#endif

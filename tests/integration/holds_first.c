// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// glibc's first pthread_create installs a handler for the signal that holds use, too. Here this
// happens after a hold has asked the first thread, and before the thread hears it. Then the commits
// must go on, and so must setgid(), which libc runs in all threads by that signal. Run it with
// PMALLOC_COMMIT=1ms. [child]: the same in a forked child that has commits of its own.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holds.h"

#define SIGNAL 33 // SIGSETXID
#define PATIENCE 20

static _Atomic bool over;
static _Atomic unsigned long stores;
int pmalloc_commit(void) __attribute__((weak));

static void *store(void *unused) {
    (void)unused;
    while (!over)
        stores++;
    return NULL;
}

static bool is_pending(void) {
    unsigned long set = 0;
    REQUIRE(syscall(SYS_rt_sigpending, &set, sizeof set) == 0);
    return set >> (SIGNAL - 1) & 1;
}

// As libc would, but without its check: `how` may name libc's own signals.
static void mask(int how) {
    unsigned long set = 1ul << (SIGNAL - 1);
    REQUIRE(syscall(SYS_rt_sigprocmask, how, &set, NULL, sizeof set) == 0);
}

static void create_amid_a_hold(void) {
    pthread_t thread;
    double end = now() + PATIENCE;
    mask(SIG_BLOCK);
    while (!is_pending())
        REQUIRE(now() < end);
    REQUIRE(pthread_create(&thread, NULL, store, NULL) == 0);
    REQUIRE(pmalloc_commit() == 0); // waits for that hold, and holds the other thread
    REQUIRE(setgid(getgid()) == 0);
    while (stores == 0) // it may not have come to its first store yet
        REQUIRE(now() < end);
    over = true;
    REQUIRE(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    free(malloc(1));
    bool in_child = argc > 1 && strcmp(argv[1], "child") == 0;
    int status = -1;
    if (in_child && fork() != 0) {
        REQUIRE(wait(&status) > 0 && status == 0);
        return 0;
    }
    create_amid_a_hold();
    printf("%lu\n", stores);
    return 0;
}

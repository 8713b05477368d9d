// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Children that execute another program at once, and children that fork() did not make.
#include "forks.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

// Prints the page faults of a child that executes at once.
void exec(size_t megabytes) {
    struct rusage usage;
    build(megabytes, 1);
    for (int i = 0; i < 1000; i++) {
        pid_t pid = fork();
        if (!pid) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(127);
        }
        CHECK(ended(pid) == 0);
    }
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("%ld\n", usage.ru_minflt / 1000);
    check_all(1);
}

// A child that skips the fork handlers does not reach the heap; otherwise it would change it.
void bare(size_t megabytes) {
    build(megabytes, 1);
    struct block *first = blocks;
    for (int i = 0; i < 4; i++) {
        pid_t pid = i % 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : _Fork();
        if (!pid) {
            *(i / 2 ? &generation : &first->tag) = 9;
            _exit(0);
        }
        CHECK(ended(pid) == 128 + SIGSEGV);
    }
    check_all(1);
    pid_t pid = forked(); // a child of fork() does reach it
    if (!pid) {
        fill_all(3);
        _exit(0);
    }
    CHECK(ended(pid) == 0);
    check_all(1);
    fill_all(2);
}

// libc's clone(). The child's stack lies on the heap; its memory is its own or its parent's.
struct errand {
    pid_t child_tid;
    bool shared;
};

static int run_errand(void *arg) {
    struct errand *errand = arg;
    char depth[2000];
    memset(depth, 1, sizeof depth);
    check_all(1);
    if (errand->shared) {
        generation = 5;
        return 41;
    }
    CHECK((pid_t)syscall(SYS_gettid) == errand->child_tid);
    fill_all(3);
    churn(3);
    check_all(3);
    return 42 + depth[999] - depth[1];
}

void cloned(size_t megabytes) {
    const size_t size = 256 << 10;
    build(megabytes, 1);
    for (int i = 0; i < 4; i++) {
        char *stack = malloc(size);
        struct errand *errand = calloc(1, sizeof *errand);
        pid_t told = 0;
        CHECK(stack && errand);
        int flags = SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID;
        pid_t pid =
            clone(run_errand, stack + size - i, flags, errand, &told, NULL, &errand->child_tid);
        CHECK(pid > 0 && told == pid && ended(pid) == 42);
        check_all(1);
        errand->shared = true;
        pid = clone(run_errand, stack + size, SIGCHLD | CLONE_VM | CLONE_FILES | CLONE_FS, errand);
        CHECK(pid > 0 && ended(pid) == 41 && generation == 5);
        generation = 1;
        free(stack);
        free(errand);
    }
    errno = 0;
    CHECK(clone(NULL, NULL, SIGCHLD, NULL) == -1 && errno == EINVAL);
    fill_all(2);
    churn(2);
    check_all(2);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Children that execute another program at once, and children that fork() did not make.
#include "forks.h"

#include <dirent.h>
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

// ---- children that the program makes beside fork() ----------------------------------------------

enum kind { BARE, RAW, RAW_FORK, RAW_CLONE3, FILES, SUSPENDS, POINTER, RAW_FILES, KINDS };

static int by_exit; // the child ends by exit()

static int be_child(void *arg) {
    (void)arg;
    check_all(1);
    generation = 9;
    fill_all(3);
    churn(3);
    add(2 * MIB, 3);
    check_all(3);
    if (by_exit)
        exit(42);
    _exit(42);
}

static long thread_pointer(void) {
    long pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    return pointer;
}

static pid_t make(enum kind kind, char *stack) {
    uint64_t words[11] = {0, 0, 0, 0, SIGCHLD}; // struct clone_args
    void *top = stack + (256 << 10);
    switch (kind) {
    case BARE:
        return _Fork();
    case RAW:
        return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    case RAW_FORK:
        return (pid_t)syscall(SYS_fork);
    case RAW_CLONE3:
        return (pid_t)syscall(SYS_clone3, words, sizeof words);
    case FILES:
        return clone(be_child, top, CLONE_FILES | SIGCHLD, NULL);
    case SUSPENDS:
        return clone(be_child, top, CLONE_VFORK | SIGCHLD, NULL);
    case POINTER:
        return clone(be_child, top, CLONE_SETTLS | SIGCHLD, NULL, NULL, thread_pointer());
    case RAW_FILES:
    case KINDS:
        break;
    }
    return (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
}

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    CHECK(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

// Each child has the blocks as they were, whatever the parent stores meanwhile. The parent keeps
// its descriptors, so its heap can grow afterwards.
void bare(size_t megabytes) {
    build(megabytes, 1);
    int before = descriptors();
    for (enum kind kind = BARE; kind < 2 * KINDS; kind++) {
        char *stack = malloc(256 << 10);
        by_exit = kind >= KINDS;
        pid_t pid = make(kind % KINDS, stack);
        if (pid == 0)
            be_child(NULL);
        CHECK(pid > 0);
        fill_all(2);
        CHECK(ended(pid) == 42);
        CHECK(generation != 9 && descriptors() >= before);
        check_all(2);
        fill_all(1);
        add(MIB, 1);
        free(stack);
    }
    fill_all(2);
    churn(2);
    check_all(2);
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
    CHECK(syscall(SYS_clone3, (void *)8, (size_t)88) == -1 && errno == EFAULT);
    fill_all(2);
    churn(2);
    check_all(2);
}

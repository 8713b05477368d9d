// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Children made by an instruction of the program's own, and what the program sees of SIGSEGV.
//
//   stray child plain|files|threads|handler
//                          a child reads and changes blocks and variables, forks, and ends; with
//                          its parent's descriptors; of a parent whose other threads allocate; of
//                          one that handles SIGSEGV
//   stray owner            a child lives on when its parent has ended: it has not the heap's lock
//   stray seen             what sigaction() and signal() tell
//   stray dies fault|sent|raised|child
//                          the process, or a child of the kind above, ends by SIGSEGV
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 2000
#define BYTES 300
#define LARGE ((size_t)3 << 20)
#define CHECK(fact)                                                                                \
    do {                                                                                           \
        if (!(fact)) {                                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, #fact);                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

char **blocks, *large;
volatile int counter = 5;
volatile sig_atomic_t handled;
static char many[100000];

static pid_t make(long flags) {
    long pid;
    register long child_tid __asm__("r10") = 0;
    register long tls __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(pid)
                     : "a"((long)SYS_clone), "D"(flags | SIGCHLD), "S"(0L), "d"(0L), "r"(child_tid),
                       "r"(tls)
                     : "rcx", "r11", "memory");
    return (pid_t)pid;
}

static int ended(pid_t pid) {
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

static void build(void) {
    blocks = malloc(BLOCKS * sizeof *blocks);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = memset(malloc(BYTES), 'a', BYTES);
    large = memset(malloc(LARGE), 'a', LARGE);
    memset(many, 'a', sizeof many);
}

static bool all_are(char value, int count) {
    bool good = counter == count;
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0; k < BYTES; k++)
            good &= blocks[i][k] == value;
    for (size_t i = 0; i < LARGE; i++)
        good &= large[i] == value;
    for (size_t i = 0; i < sizeof many; i++)
        good &= many[i] == value;
    return good;
}

static void change_all(char value, int count) {
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i], value, BYTES);
    memset(large, value, LARGE);
    memset(many, value, sizeof many);
    counter = count;
}

static void churn(unsigned rounds) {
    char *kept[100] = {NULL};
    for (unsigned i = 0; i < rounds; i++) {
        size_t size = i * 7919 % 20000 + 1;
        free(kept[i % 100]);
        kept[i % 100] = memset(malloc(size), 'x', size);
    }
    for (unsigned i = 0; i < 100; i++)
        free(kept[i]);
}

static _Noreturn void be_child(void) {
    CHECK(all_are('a', 5));
    change_all('c', 6);
    churn(5000);
    pid_t pid = fork();
    if (pid == 0)
        exit(all_are('c', 6) ? 2 : 1);
    CHECK(ended(pid) == 2 << 8);
    if ((pid = make(0)) == 0) {
        CHECK(all_are('c', 6));
        change_all('d', 7);
        churn(5000);
        exit(all_are('d', 7) ? 3 : 1);
    }
    CHECK(ended(pid) == 3 << 8);
    CHECK(all_are('c', 6));
    exit(4);
}

static void *allocate(void *unused) {
    for (;;)
        churn(5000);
    return unused;
}

static void on_fault(int number) {
    handled = number;
    _exit(9);
}

// Where another thread of the parent was in the allocator at that moment, the child is served
// outside of the heap.
static void child(const char *how) {
    bool threads = strcmp(how, "threads") == 0;
    pthread_t thread;
    build();
    if (strcmp(how, "handler") == 0)
        signal(SIGSEGV, on_fault);
    CHECK(!threads || pthread_create(&thread, NULL, allocate, NULL) == 0);
    for (int i = 0; i < (threads ? 8 : 3); i++) {
        pid_t pid = make(strcmp(how, "files") == 0 ? CLONE_FILES : 0);
        if (pid == 0 && threads) {
            CHECK(all_are('a', 5));
            change_all('c', 6);
            churn(500);
            _exit(all_are('c', 6) ? 4 : 1);
        }
        if (pid == 0)
            be_child();
        CHECK(ended(pid) == 4 << 8);
        CHECK(all_are('a', 5) && handled == 0);
        if (!threads)
            churn(5000);
    }
    free(malloc(LARGE));
}

// A line comes when the child is the only process left.
static void owner(void) {
    int in[2];
    char byte;
    build();
    CHECK(pipe(in) == 0);
    if (make(0) == 0) {
        close(in[1]);
        CHECK(all_are('a', 5));
        change_all('c', 6);
        CHECK(read(in[0], &byte, 1) == 0);
        churn(5000);
        printf("%s %d\n", all_are('c', 6) ? "alone" : "changed", (int)getpid());
        fflush(stdout);
        for (;;)
            pause();
    }
}

static bool is_default(const struct sigaction *action) {
    return action->sa_handler == SIG_DFL && !(action->sa_flags & SA_SIGINFO);
}

static void seen(void) {
    struct sigaction was, mine = {.sa_handler = on_fault}, none = {.sa_handler = SIG_DFL};
    CHECK(sigaction(SIGSEGV, NULL, &was) == 0 && is_default(&was));
    CHECK(signal(SIGSEGV, on_fault) == SIG_DFL);
    CHECK(signal(SIGSEGV, SIG_DFL) == on_fault);
    CHECK(sigaction(SIGSEGV, &mine, &was) == 0 && is_default(&was));
    CHECK(sigaction(SIGSEGV, &none, &was) == 0 && was.sa_handler == on_fault);
    CHECK(sigaction(SIGSEGV, NULL, &was) == 0 && is_default(&was));
    CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    CHECK(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    build();
    pid_t pid = make(0); // the default is watched again
    if (pid == 0)
        be_child();
    CHECK(ended(pid) == 4 << 8);
}

static void dies(const char *how) {
    const struct rlimit none = {0, 0};
    build();
    setrlimit(RLIMIT_CORE, &none);
    if (strcmp(how, "sent") == 0)
        kill(getpid(), SIGSEGV);
    else if (strcmp(how, "raised") == 0)
        raise(SIGSEGV);
    else if (strcmp(how, "fault") == 0)
        *(volatile char *)8 = 1;
    pid_t pid = make(0);
    if (pid == 0) {
        counter++;
        *(volatile char *)8 = 1;
        _exit(1);
    }
    CHECK(ended(pid) == SIGSEGV);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
    if (strcmp(what, "child") == 0)
        child(how);
    else if (strcmp(what, "owner") == 0)
        owner();
    else if (strcmp(what, "seen") == 0)
        seen();
    else if (strcmp(what, "dies") == 0)
        dies(how);
    else
        return 2;
    puts("right");
    return 0;
}

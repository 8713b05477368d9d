// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes children on a stack that is not the program's own. The child goes on on a copy of it, and
// neither sees what the other stores to it, to its thread-local variables and to a block.
//
//   fork_stack WHERE HOW    WHERE: coroutine, static (its stack is a variable), thread, signal
//                           HOW: fork, daemon, forkpty, clone, vfork, spawn, bare, raw
//   fork_stack streams      a child sets back the locks of its streams, not its parent's
#define _GNU_SOURCE
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s does not hold\n", __FILE__, __LINE__, how, #condition); \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define TIMES 3
#define MARKS 64
#define STACK ((size_t)128 << 10)

extern char **environ;
static const char *how;
static __thread long own = 1;
static long *block;
static char static_stack[STACK] __attribute__((aligned(4096)));
static pthread_mutex_t mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static void all_are(volatile long *mark, long value) {
    for (int i = 0; i < MARKS; i++)
        CHECK(mark[i] == value + i);
    CHECK(own == value && *block == value);
}

static void set_all(volatile long *mark, long value) {
    for (int i = 0; i < MARKS; i++)
        mark[i] = value + i;
    own = *block = value;
}

// libc names the owner of a mutex by what it keeps of the thread.
static void is_itself(void) {
#ifdef __GLIBC__
    CHECK(pthread_mutex_lock(&mutex) == 0 && mutex.__data.__owner == gettid());
    CHECK(pthread_mutex_unlock(&mutex) == 0);
#endif
}

static int child(volatile long *mark) {
    all_are(mark, 1);
    set_all(mark, 1000);
    free(malloc(3 << 20));
    if (strcmp(how, "raw") != 0 && strcmp(how, "clone") != 0) // libc knows of this child
        is_itself();
    all_are(mark, 1000);
    return 4;
}

static int run_child(void *mark) { return child(mark); }

static pid_t spawned(const char *program) {
    pid_t pid = 0;
    char *argv[] = {(char *)program, NULL};
    CHECK(posix_spawn(&pid, program, NULL, NULL, argv, environ) == 0);
    return pid;
}

// The child's child tells by a pipe.
static void daemonise(volatile long *mark) {
    int out[2], status = -1, told = 0;
    CHECK(pipe(out) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(daemon(1, 1) == 0);
        told = child(mark);
        CHECK(write(out[1], &told, sizeof told) == sizeof told);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(read(out[0], &told, sizeof told) == sizeof told && told == 4);
    close(out[0]);
    close(out[1]);
}

static pid_t executed(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    return pid;
}

// A child that goes on here, or runs run_child().
static pid_t child_by_name(volatile long *mark, char *stack) {
    int terminal;
    if (strcmp(how, "fork") == 0)
        return fork();
    if (strcmp(how, "forkpty") == 0)
        return forkpty(&terminal, NULL, NULL, NULL);
    if (strcmp(how, "bare") == 0)
        return _Fork();
    if (strcmp(how, "raw") == 0)
        return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    return clone(run_child, stack + STACK, SIGCHLD, (void *)mark);
}

static void one_child(volatile long *mark) {
    int status = -1;
    bool executes = strcmp(how, "vfork") == 0 || strcmp(how, "spawn") == 0;
    char *stack = malloc(STACK);
    pid_t pid = !executes                   ? child_by_name(mark, stack)
                : strcmp(how, "vfork") == 0 ? executed()
                                            : spawned("/bin/true");
    if (pid == 0)
        _exit(child(mark));
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(status == (executes ? 0 : 4 << 8));
    free(stack);
}

static void children(void) {
    volatile long mark[MARKS];
    set_all(mark, 1);
    for (int i = 0; i < TIMES; i++) {
        is_itself();
        if (strcmp(how, "daemon") == 0)
            daemonise(mark);
        else
            one_child(mark);
        all_are(mark, 1);
        is_itself();
    }
}

// ---- where --------------------------------------------------------------------------------------

static ucontext_t back, there;

static void coroutine(char *stack) {
    CHECK(stack && getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = STACK;
    there.uc_link = &back;
    makecontext(&there, children, 0);
    CHECK(swapcontext(&back, &there) == 0);
}

static void *run_thread(void *arg) {
    children();
    return arg;
}

static void thread(void) {
    pthread_attr_t attributes;
    pthread_t id;
    void *stack = NULL;
    CHECK(posix_memalign(&stack, 4096, STACK) == 0);
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&id, &attributes, run_thread, NULL) == 0);
    CHECK(pthread_join(id, NULL) == 0);
}

static void handler(int number) {
    (void)number;
    children();
}

static void alternate(void) {
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK}, now;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack.ss_sp && now.ss_size == STACK);
}

// ---- streams ------------------------------------------------------------------------------------

static FILE *stream;
static pthread_barrier_t meeting;

static void *hold_stream(void *arg) {
    flockfile(stream);
    pthread_barrier_wait(&meeting);
    pthread_barrier_wait(&meeting);
    funlockfile(stream);
    return arg;
}

static void streams(void) {
    pthread_t id;
    int status = -1;
    CHECK((stream = fopen("/dev/null", "w")) && pthread_barrier_init(&meeting, NULL, 2) == 0);
    CHECK(pthread_create(&id, NULL, hold_stream, NULL) == 0);
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < TIMES; i++) {
        CHECK(ftrylockfile(stream) != 0);
        pid_t pid = fork();
        if (pid == 0)
            _exit(ftrylockfile(stream) == 0 ? 4 : 5);
        CHECK(waitpid(pid, &status, 0) == pid && status == 4 << 8);
        CHECK(ftrylockfile(stream) != 0);
    }
    pthread_barrier_wait(&meeting);
    CHECK(pthread_join(id, NULL) == 0 && ftrylockfile(stream) == 0);
}

int main(int argc, char **argv) {
    const char *where = argc > 1 ? argv[1] : "";
    how = argc > 2 ? argv[2] : where;
    block = malloc(sizeof *block);
    if (strcmp(where, "coroutine") == 0)
        coroutine(malloc(STACK));
    else if (strcmp(where, "static") == 0)
        coroutine(static_stack);
    else if (strcmp(where, "thread") == 0)
        thread();
    else if (strcmp(where, "signal") == 0)
        alternate();
    else if (strcmp(where, "streams") == 0)
        streams();
    else
        return 2;
    puts("right");
    return 0;
}

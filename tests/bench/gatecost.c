// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the gate of a commit costs (threads/commit_gate.h), counted:
//
//   gatecost steps            instructions of a mutex's lock and unlock, by single steps: in commit
//                             mode there is a thread that valgrind does not know
//   gatecost turns COUNT      so many answers, each with a change, beside threads that wait
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 5
#define PAIRS 100

long *held; // the root

static void check(int good, const char *what) {
    if (good)
        return;
    perror(what);
    _exit(1);
}

// ---- instructions -------------------------------------------------------------------------------

static struct {
    _Atomic int is_traced;
    unsigned long steps[2];
} * shared;

// An int3 at each end. Volatile, so that both loops are the same code.
__attribute__((noinline)) static void lock_often(volatile unsigned long pairs) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    __asm__ volatile("int3");
    for (unsigned long i = 0; i < pairs; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    __asm__ volatile("int3");
}

static int is_at_int3(pid_t id) {
    siginfo_t info;
    int status;
    check(waitpid(id, &status, 0) == id && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP,
          "waitpid");
    check(ptrace(PTRACE_GETSIGINFO, id, NULL, &info) == 0, "PTRACE_GETSIGINFO");
    return info.si_code == SI_KERNEL;
}

static void count_steps(pid_t id) {
    check(ptrace(PTRACE_SEIZE, id, NULL, NULL) == 0, "PTRACE_SEIZE");
    shared->is_traced = 1;
    for (int i = 0; i < 2; i++) {
        check(is_at_int3(id), "int3");
        do {
            check(ptrace(PTRACE_SINGLESTEP, id, NULL, NULL) == 0, "PTRACE_SINGLESTEP");
            shared->steps[i]++;
        } while (!is_at_int3(id));
        check(ptrace(PTRACE_CONT, id, NULL, NULL) == 0, "PTRACE_CONT");
    }
    check(ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == 0 && waitpid(id, NULL, 0) == id, "end");
    check(ptrace(PTRACE_DETACH, id, NULL, NULL) == 0, "PTRACE_DETACH");
}

static void run_steps(void) {
    pthread_mutex_t warm = PTHREAD_MUTEX_INITIALIZER;
    pid_t id = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared != MAP_FAILED, "mmap");
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pthread_mutex_lock(&warm); // the first call of each name looks for it
    pthread_mutex_unlock(&warm);
    pid_t child = fork();
    if (child == 0) {
        count_steps(id);
        _exit(0);
    }
    while (!shared->is_traced)
        usleep(1000);
    lock_often(PAIRS);
    lock_often(2 * PAIRS);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the other process");
    printf("instructions=%.2f\n", (double)(shared->steps[1] - shared->steps[0]) / PAIRS);
}

// ---- turns of the gate --------------------------------------------------------------------------

static _Atomic int waiting;

static void *wait_always(void *end) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    char byte;
    pthread_mutex_lock(&mutex); // so that it is known to take locks
    pthread_mutex_unlock(&mutex);
    waiting++;
    check(read(*(int *)end, &byte, 1) == 1, "read");
    return NULL;
}

static void run_turns(unsigned long count) {
    int ends[2];
    pthread_t id;
    check(pipe(ends) == 0, "pipe");
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&id, NULL, wait_always, ends) == 0, "pthread_create");
    while (waiting < THREADS)
        usleep(1000);
    usleep(20000); // until they wait
    for (; count; count--) {
        ++*held;
        check(write(STDOUT_FILENO, ".\n", 2) == 2, "write");
    }
}

int main(int argc, char **argv) {
    held = calloc(1, sizeof *held);
    check(held != NULL, "calloc");
    if (argc == 2 && strcmp(argv[1], "steps") == 0)
        run_steps();
    else if (argc == 3 && strcmp(argv[1], "turns") == 0)
        run_turns(strtoul(argv[2], NULL, 10));
    else
        return 16;
    return 0;
}

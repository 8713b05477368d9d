// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Stacks that have no room for a signal, in a program that takes none there; and what a program
// sees of its alternate stacks. `signal_stacks MODE`; status 3: something is wrong.
//
//   coroutines   two threads compute on stacks of 2 KiB in the heap while this one commits. The
//                bytes around each stack must stay
//   unwritable   an alternate stack that is now and then read-only, while this thread commits
//   alternate    sigaltstack() and the handlers that run there
//   threads      threads that end in each way, one after the other
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <ucontext.h>
#include <unistd.h>

enum { AROUND = 8192, STACK = 2048, COMMITS = 150, THREADS = 1500 };

void *keep;

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            static const char text[] = "signal_stacks: wrong: " #x "\n";                           \
            (void)!write(STDERR_FILENO, text, sizeof text - 1);                                    \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static atomic_bool over;
static atomic_int running;

static void commit_often(void) {
    int (*commit)(void);
    *(void **)&commit = dlsym(RTLD_DEFAULT, "pmalloc_commit");
    MUST(commit);
    for (int i = 0; i < COMMITS; i++) {
        int error = commit();
        MUST(error == 0 || error == EAGAIN);
    }
    over = true;
}

// ---- coroutines ---------------------------------------------------------------------------------

static void compute(void) {
    unsigned long sum = 0;
    running++;
    while (!over)
        for (int i = 0; i < 1000; i++)
            __asm__ volatile("add $1, %0" : "+r"(sum));
}

// The coroutine ends into the thread's own context.
static void *on_small_stack(void *memory) {
    ucontext_t here, there;
    MUST(getcontext(&there) == 0);
    there.uc_stack.ss_sp = (char *)memory + AROUND;
    there.uc_stack.ss_size = STACK;
    there.uc_link = &here;
    makecontext(&there, compute, 0);
    MUST(swapcontext(&here, &there) == 0);
    return NULL;
}

static void coroutines(void) {
    pthread_t thread[2];
    unsigned char *memory[2];
    for (int t = 0; t < 2; t++) {
        MUST((memory[t] = malloc(2 * AROUND + STACK)) != NULL);
        memset(memory[t], 0x5a, 2 * AROUND + STACK);
        MUST(pthread_create(&thread[t], NULL, on_small_stack, memory[t]) == 0);
    }
    while (running < 2)
        usleep(1000);
    commit_often();
    for (int t = 0; t < 2; t++) {
        MUST(pthread_join(thread[t], NULL) == 0);
        for (int i = 0; i < AROUND; i++)
            MUST(memory[t][i] == 0x5a && memory[t][AROUND + STACK + i] == 0x5a);
    }
}

// ---- unwritable ---------------------------------------------------------------------------------

static char stack[10 * 4096] __attribute__((aligned(4096)));
static volatile int calls;

static void counts(int number) {
    (void)number;
    calls++;
}

static void *protects(void *unused) {
    stack_t ours = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = counts, .sa_flags = SA_ONSTACK};
    (void)unused;
    MUST(sigaltstack(&ours, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    running++;
    while (!over) {
        MUST(mprotect(stack, sizeof stack, PROT_READ) == 0);
        MUST(mprotect(stack, sizeof stack, PROT_READ | PROT_WRITE) == 0);
        MUST(raise(SIGUSR1) == 0);
    }
    MUST(calls > 0);
    return NULL;
}

static void unwritable(void) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, protects, NULL) == 0);
    while (!running)
        usleep(1000);
    commit_often();
    MUST(pthread_join(thread, NULL) == 0);
}

// ---- alternate ----------------------------------------------------------------------------------

static bool kernel_has_one(void) {
    stack_t now;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_sigaltstack), "D"(NULL), "S"(&now)
                     : "rcx", "r11", "memory");
    MUST(result == 0);
    return !(now.ss_flags & SS_DISABLE);
}

static bool has_stack(int flags, void *at, size_t size) {
    stack_t now, by_number;
    MUST(sigaltstack(NULL, &now) == 0 && syscall(SYS_sigaltstack, NULL, &by_number) == 0);
    MUST(now.ss_flags == by_number.ss_flags);
    return now.ss_flags == flags &&
           (flags == SS_DISABLE || (now.ss_sp == at && now.ss_size == size));
}

static bool is_on(const void *at) { return (uintptr_t)at - (uintptr_t)stack < sizeof stack; }

static int depth, wanted; // how many handlers there are, one in the other
static bool expect_on;
static void *frame_of_program;
static sigjmp_buf back;

static void nests(int number, siginfo_t *info, void *context) {
    char here;
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack / 2};
    const ucontext_t *u = context;
    double value = 1.0;
    MUST(number == SIGUSR1 && info->si_signo == SIGUSR1 && is_on(&here) == expect_on);
    MUST(u->uc_mcontext.gregs[REG_RIP] != 0);
    if (expect_on) {
        MUST(has_stack(SS_ONSTACK, stack, sizeof stack));
        MUST(sigaltstack(&other, NULL) == -1 && errno == EPERM);
    } else {
        MUST((uintptr_t)frame_of_program - (uintptr_t)&here < 1 << 20); // its own stack
    }
    for (int i = 0; i < 100; i++)
        value = value * 1.5 + i;
    MUST(value > 0);
    calls++;
    if (++depth < wanted)
        MUST(raise(SIGUSR1) == 0);
    depth--;
    if (wanted < 0)
        siglongjmp(back, 1);
}

// What is in registers stays there.
static void takes_signals(int flags, int nested) {
    struct sigaction action = {.sa_sigaction = nests, .sa_flags = flags | SA_SIGINFO | SA_NODEFER};
    volatile double x = 3.25;
    char here;
    frame_of_program = &here;
    wanted = nested;
    calls = 0;
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    double a = x * 2, b = x * 4;
    if (nested < 0 && sigsetjmp(back, 1) == 0)
        MUST(raise(SIGUSR1) == 0);
    else if (nested > 0)
        MUST(raise(SIGUSR1) == 0);
    MUST(a == 6.5 && b == 13.0 && calls == (nested < 0 ? 1 : nested));
}

static void *alternate(void *always) {
    stack_t mine = {.ss_sp = stack, .ss_size = sizeof stack}, small = mine, odd = mine, was;
    MUST(!always || kernel_has_one());
    MUST(has_stack(SS_DISABLE, NULL, 0));
    expect_on = false;
    takes_signals(SA_ONSTACK, 3); // there is none: on the stack as it is
    takes_signals(SA_ONSTACK, -1);
    small.ss_size = 1000;
    odd.ss_flags = 77;
    MUST(sigaltstack(&small, NULL) == -1 && errno == ENOMEM);
    MUST(sigaltstack(&odd, NULL) == -1 && errno == EINVAL);
    MUST(sigaltstack(&mine, &was) == 0 && was.ss_flags == SS_DISABLE);
    MUST(has_stack(0, stack, sizeof stack));
    takes_signals(0, 3);
    expect_on = true;
    takes_signals(SA_ONSTACK, 3);
    takes_signals(SA_ONSTACK, -1);
    depth = 0;
    takes_signals(SA_ONSTACK, 2);
    mine.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&mine, &was) == 0 && was.ss_sp == stack && has_stack(SS_DISABLE, NULL, 0));
    expect_on = false;
    takes_signals(SA_ONSTACK, 2);
    MUST(!always || kernel_has_one());
    return NULL;
}

// ---- threads ------------------------------------------------------------------------------------

static bool always_one;

static void *ends(void *how) {
    MUST(!always_one || kernel_has_one());
    if ((intptr_t)how == 1)
        pthread_exit(NULL);
    while ((intptr_t)how == 2)
        pause();
    return how;
}

static int ends_in_c(void *how) {
    MUST(!always_one || kernel_has_one());
    return how ? 7 : 8;
}

static void threads(void) {
    pthread_t thread;
    thrd_t other;
    void *result;
    int number;
    for (intptr_t i = 0; i < THREADS; i++) {
        MUST(pthread_create(&thread, NULL, ends, (void *)(i % 3)) == 0);
        MUST(i % 3 != 2 || pthread_cancel(thread) == 0);
        MUST(pthread_join(thread, &result) == 0);
        MUST(result == (i % 3 == 2 ? PTHREAD_CANCELED : NULL));
    }
    for (int i = 0; i < 50; i++) {
        MUST(thrd_create(&other, ends_in_c, "") == thrd_success);
        MUST(thrd_join(other, &number) == thrd_success && number == 7);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    always_one = argc > 2;
    keep = malloc(100);
    if (!strcmp(mode, "coroutines"))
        coroutines();
    else if (!strcmp(mode, "unwritable"))
        unwritable();
    else if (!strcmp(mode, "threads"))
        threads();
    else if (!strcmp(mode, "alternate")) {
        pthread_t thread;
        alternate(NULL);
        MUST(pthread_create(&thread, NULL, alternate, always_one ? stack : NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    } else
        MUST(!"a mode");
    puts("right");
    return 0;
}

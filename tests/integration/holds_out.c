// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A thread leaves a call that is on record by another way than its end, and stores. While it is
// held nothing changes, whatever way that was. MODE SECONDS.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "holds.h"

#define STACK (64 << 10)

static double end;
static _Atomic unsigned long turns, checks;
static unsigned long volatile stores; // what the threads do
static _Atomic bool waits;            // the thread is about to sleep
static pthread_t thread;

static void stands_still(void) {
    unsigned long before = stores;
    for (double until = now() + 0.0003; now() < until;) {
    }
    REQUIRE(stores == before);
    checks++;
}

static void store_for(double seconds) {
    for (double until = now() + seconds; now() < until;)
        for (int i = 0; i < 1000; i++)
            stores++;
}

static void sleep_now(void) {
    waits = true;
    poll(NULL, 0, 1000);
}

// Sends signals to a thread that sleeps, until the time is over.
static void disturb(void *(*run)(void *), void (*handler)(int, siginfo_t *, void *)) {
    const struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    REQUIRE(pthread_create(&thread, NULL, run, NULL) == 0);
    while (now() < end) {
        while (!waits && now() < end)
            sched_yield();
        waits = false;
        usleep(300);
        pthread_kill(thread, SIGUSR1);
    }
}

// ---- a handler ----------------------------------------------------------------------------------

static void handle_long(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    store_for(0.002);
}

static void *sleep_and_store(void *unused) {
    for (;; turns++) {
        sleep_now();
        store_for(0.001);
    }
    return unused;
}

static void handler_runs(void) { disturb(sleep_and_store, handle_long); }

// The handler itself sleeps in a call.
static void handle_asleep(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    store_for(0.0005);
    poll(NULL, 0, 1);
    store_for(0.0005);
}
static void handler_sleeps(void) { disturb(sleep_and_store, handle_asleep); }

static sigjmp_buf back;
static void jump(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    siglongjmp(back, 1);
}
static void *store_after_jump(void *unused) {
    (void)unused;
    sigsetjmp(back, 1);
    for (;; turns++) {
        store_for(0.002);
        sleep_now();
    }
    return NULL;
}
static void handler_jumps(void) { disturb(store_after_jump, jump); }

// The kernel knows the handler, and PMAlloc was not asked.
struct action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
void bare_return(void);
__asm__(".globl bare_return\nbare_return:\nmov $15, %eax\nsyscall\n");
static void handler_is_a_stranger(void) {
    struct action action = {(void *)jump, SA_SIGINFO | 0x04000000, bare_return, 0};
    long result;
    REQUIRE(pthread_create(&thread, NULL, store_after_jump, NULL) == 0);
    for (unsigned i = 0; now() < end; i++) {
        register long size __asm__("r10") = sizeof action.mask;
        if (i == 100) // holds have begun to go by what is on record
            __asm__ volatile("syscall"
                             : "=a"(result)
                             : "a"(SYS_rt_sigaction), "D"(SIGUSR1), "S"(&action), "d"(NULL),
                               "r"(size)
                             : "rcx", "r11", "memory");
        usleep(1000);
        if (i > 100)
            pthread_kill(thread, SIGUSR1);
    }
}

// The handler returns, but not to where it came from.
static void go_on_here(void) {
    store_for(0.002);
    siglongjmp(back, 1);
}
static void redirect(int number, siginfo_t *info, void *context) {
    greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)number, (void)info;
    reg[REG_RSP] = ((reg[REG_RSP] - 256) & ~15ll) - 8;
    reg[REG_RIP] = (greg_t)(uintptr_t)go_on_here;
}
static void handler_redirects(void) { disturb(store_after_jump, redirect); }

// ---- the end of a thread ------------------------------------------------------------------------

static void store_at_end(void *unused) {
    (void)unused;
    store_for(0.002);
}
static void *be_cancelled(void *unused) {
    pthread_cleanup_push(store_at_end, NULL);
    for (;;)
        sleep_now();
    pthread_cleanup_pop(0);
    return unused;
}
static void threads_are_cancelled(void) {
    for (; now() < end; turns++) {
        REQUIRE(pthread_create(&thread, NULL, be_cancelled, NULL) == 0);
        usleep(turns % 3 * 500);
        REQUIRE(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    }
}

static void end_here(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    store_for(0.001);
    pthread_exit(NULL);
}
static void *sleep_once(void *unused) {
    for (;;)
        sleep_now();
    return unused;
}
// The next thread may get the id of the one that ended.
static void threads_end_in_handlers(void) {
    const struct sigaction action = {.sa_sigaction = end_here, .sa_flags = SA_SIGINFO};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    for (; now() < end; turns++) {
        REQUIRE(pthread_create(&thread, NULL, sleep_once, NULL) == 0);
        usleep(turns % 3 * 500);
        REQUIRE(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, NULL) == 0);
        store_for(0.001);
    }
}

// ---- children that share memory -----------------------------------------------------------------

// The child is killed within a call that is on record for its parent.
static void vfork_is_killed(void) {
    for (; now() < end; turns++) {
        volatile pid_t child = vfork();
        if (child == 0) {
            syscall(SYS_alarm, 0);
            const struct itimerval soon = {.it_value = {.tv_usec = 1000}};
            syscall(SYS_setitimer, ITIMER_REAL, &soon, NULL);
            poll(NULL, 0, 10000);
            _exit(0);
        }
        store_for(0.003);
        REQUIRE(waitpid(child, NULL, 0) == child);
    }
}

static int sleep_in_child(void *unused) {
    for (int i = 0; i < 30; i++)
        poll(NULL, 0, 1);
    return unused != NULL;
}
static void child_shares_memory(void) {
    char *stack = malloc(STACK);
    for (; now() < end; turns++) {
        pid_t child = clone(sleep_in_child, stack + STACK, CLONE_VM | SIGCHLD, NULL);
        REQUIRE(child > 0);
        store_for(0.03);
        REQUIRE(waitpid(child, NULL, 0) == child);
    }
}

static const struct mode {
    const char *name;
    void (*run)(void);
} modes[] = {

    {"handler", handler_runs},         {"asleep", handler_sleeps},
    {"jump", handler_jumps},           {"stranger", handler_is_a_stranger},
    {"redirect", handler_redirects},   {"cancel", threads_are_cancelled},
    {"exit", threads_end_in_handlers}, {"vfork", vfork_is_killed},
    {"clone", child_shares_memory},
};

int main(int argc, char **argv) {
    REQUIRE(argc == 3);
    end = now() + atof(argv[2]);
    if (&holder_check)
        holder_check = stands_still;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, argv[1]) == 0) {
            modes[i].run();
            printf("turns %lu checks %lu\n", turns, checks);
            exit(0); // beside the thread
        }
    return 2;
}

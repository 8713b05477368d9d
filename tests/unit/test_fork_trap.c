// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The trap of a fork's system call. What libc calls before it, such as the blocking of signals in
// musl's fork(), does what it should and leaves the trap set.
#include "fork/fork_trap.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "check.h"
#include "fork/aside.h"

static int made;

static long make(void *arg) {
    const struct pm_fork_call *call = arg;
    const long *a = call->argument;
    made++;
    return pm_bare_call6(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void block_all(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    CHECK_EQ(sigprocmask(SIG_SETMASK, &all, before), 0);
}

static bool set(void) {
    CHECK(pm_aside_prepare());
    return pm_fork_trap_set(make);
}

static int ended(pid_t pid) {
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_fork_is_trapped(void) {
    sigset_t before, now;
    block_all(&before);
    CHECK(set());
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    CHECK_EQ(sigprocmask(SIG_UNBLOCK, &one, NULL), 0);
    CHECK_EQ(sigprocmask(SIG_BLOCK, NULL, &now), 0);
    CHECK(!sigismember(&now, SIGUSR1) && sigismember(&now, SIGUSR2));
    CHECK_EQ(sigprocmask(SIG_BLOCK, &one, NULL), 0);
    CHECK_EQ(getppid(), pm_bare_call(SYS_getppid, 0, 0, 0, 0));
    errno = 0;
    CHECK(close(-1) == -1 && errno == EBADF);
    pid_t pid = fork();
    pm_fork_trap_clear();
    sigprocmask(SIG_BLOCK, NULL, &now);
    if (pid == 0)
        _exit(made == 1 && sigismember(&now, SIGUSR1) ? 4 : 5);
    CHECK(made == 1 && sigismember(&now, SIGUSR1));
    CHECK_EQ(ended(pid), 4 << 8);
    sigprocmask(SIG_SETMASK, &before, NULL);
    pid = fork(); // not any more
    if (pid == 0)
        _exit(made);
    CHECK_EQ(ended(pid), 1 << 8);
}

// A process that shares memory is none of these. The trap is gone then.
static void test_vfork_is_left_alone(void) {
    sigset_t before;
    block_all(&before);
    CHECK(set());
    pid_t pid = vfork();
    if (pid == 0)
        _exit(4);
    pm_fork_trap_clear();
    sigprocmask(SIG_SETMASK, &before, NULL);
    CHECK_EQ(ended(pid), 4 << 8);
    CHECK_EQ(made, 1);
}

static void test_everything_is_given_back(void) {
    static char memory[32 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory}, now;
    struct sigaction action;
    sigset_t before;
    CHECK_EQ(sigaltstack(&stack, NULL), 0);
    block_all(&before);
    CHECK(set());
    pm_fork_trap_clear();
    sigprocmask(SIG_SETMASK, &before, NULL);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == memory && now.ss_size == sizeof memory);
    CHECK(sigaction(SIGSYS, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
}

static void heard(int number) { (void)number; }

static void test_a_program_with_a_handler_keeps_it(void) {
    struct sigaction action = {.sa_handler = heard};
    CHECK_EQ(sigaction(SIGSYS, &action, NULL), 0);
    CHECK(!set());
    CHECK(sigaction(SIGSYS, NULL, &action) == 0 && action.sa_handler == heard);
}

int main(void) {
    RUN(fork_is_trapped);
    RUN(vfork_is_left_alone);
    RUN(everything_is_given_back);
    RUN(a_program_with_a_handler_keeps_it);
    return CHECK_DONE();
}

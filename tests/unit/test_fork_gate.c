// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The fork gate between the two processes of a fork. It opens however the copying process ends.
// Also tested: the thread that copies the heap while the child runs on, and what /proc says of a
// process.
#include "fork/fork_gate.h"

#include <pthread.h>

#include "base/os.h"
#include "fork/private.h"
#include "heap_fixture.h"

#define MIB ((size_t)1 << 20)

static struct pm_fork_gate *gate;
static bool asked;
static int tell[2] = {-1, -1}; // written to when the one who waits is asked

static bool never(struct pm_fork_gate *g) {
    asked = g == gate;
    if (tell[1] >= 0)
        MUST(write(tell[1], "", 1) == 1);
    return false;
}

static bool give_up(struct pm_fork_gate *g) {
    asked = g == gate;
    return true;
}

static int ended(pid_t pid) {
    int status = 0;
    MUST(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A child takes the gate and calls `then`. The parent waits at the gate. Returns how the child
// ended.
static int through_gate(void (*then)(void)) {
    gate = pm_fork_gate_new();
    MUST(gate);
    pid_t pid = fork();
    if (pid == 0) {
        struct pm_fork_gate_hold hold = pm_fork_gate_take(gate);
        then();
        pm_fork_gate_leave(hold);
        _exit(0);
    }
    pm_fork_gate_wait(gate, never);
    int status = ended(pid);
    pm_fork_gate_drop(gate);
    return status;
}

static void open_it(void) { pm_fork_gate_open(gate); }
static void end(void) { _exit(7); }
static void die(void) { kill(getpid(), SIGKILL); }
static void execute(void) {
    execl("/bin/sleep", "sleep", "0.2", (char *)NULL);
    _exit(127);
}
static void late(void) {
    MUST(read(tell[0], &(char){0}, 1) == 1);
    pm_fork_gate_open(gate);
}

static void test_every_end_opens_the_gate(void) {
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(through_gate(open_it), 0);
        CHECK_EQ(through_gate(end), 7);
        CHECK_EQ(through_gate(die), 128 + SIGKILL);
    }
    CHECK_EQ(through_gate(execute), 0);
    asked = false;
    MUST(pipe(tell) == 0);
    CHECK_EQ(through_gate(late), 0);
    CHECK(asked);
}

// Nobody opens the gate. The callback ends the wait.
static void test_waiting_can_be_given_up(void) {
    gate = pm_fork_gate_new();
    MUST(gate);
    asked = false;
    pm_fork_gate_wait(gate, give_up);
    CHECK(asked);
    pm_fork_gate_drop(gate);
}

static void *idle(void *arg) {
    MUST(read(*(int *)arg, &(char){0}, 1) == 0);
    return NULL;
}

static void *remaining(void *arg) {
    while (pm_os_state(getpid()) != 'Z')
        usleep(100);
    CHECK(pm_os_one_thread());
    _exit(check_failures != 0);
    return arg;
}

// The first thread has ended, but stays listed as long as the others live.
static void test_a_thread_that_is_exiting_does_not_count(void) {
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, remaining, NULL) == 0);
        syscall(SYS_exit, 0);
    }
    CHECK_EQ(ended(pid), 0);
}

static void test_what_proc_tells(void) {
    int fd[2];
    pthread_t thread;
    MUST(pipe(fd) == 0);
    CHECK(pm_os_one_thread());
    MUST(pthread_create(&thread, NULL, idle, &fd[0]) == 0);
    CHECK(!pm_os_one_thread());
    close(fd[1]);
    pthread_join(thread, NULL);
    CHECK_EQ(pm_os_proc_pid(), getpid());
    CHECK_EQ(pm_os_newest_child(), 0);
    pid_t first = fork();
    if (first == 0)
        for (;;)
            pause();
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    CHECK_EQ(pm_os_newest_child(), pid);
    int status;
    MUST(waitpid(pid, &status, WUNTRACED) == pid);
    CHECK_EQ(pm_os_state(pid), 'T');
    kill(pid, SIGCONT);
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
    CHECK_EQ(pm_os_state(pid), 'Z');
    MUST(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(pm_os_state(pid), 0);
    kill(first, SIGKILL);
    MUST(waitpid(first, &status, 0) == first);
}

// A heap of one block. Each of its pages holds its own number.
static uint32_t *make_heap(size_t bytes) {
    pm_options_default();
    fixture_new_heap();
    uint32_t index = pm_extent_take(bytes >> PM_PAGE_SHIFT, 1);
    MUST(index && pm_extent_publish(index, false));
    uint32_t *p = pm_extent_address(&pm_extents[index]);
    for (size_t at = 0; at < bytes; at += PM_PAGE_SIZE)
        p[at / sizeof *p] = (uint32_t)at;
    return p;
}

static void copied_behind(unsigned delay_us, bool hurry) {
    const size_t bytes = 12 * MIB;
    uint32_t *p = make_heap(bytes);
    int fd[2];
    MUST(pipe(fd) == 0);
    gate = pm_fork_gate_new();
    MUST(gate);
    pid_t pid = fork();
    if (pid == 0) {
        struct pm_fork_gate_hold hold = pm_fork_gate_take(gate);
        MUST(pm_private_enter(false));
        MUST(pm_private_start_copier(gate, delay_us));
        pm_fork_gate_leave(hold);
        // at the same time as the copying thread
        for (size_t at = 0; at < bytes; at += 3 * PM_PAGE_SIZE)
            p[at / sizeof *p + 1] = 5;
        if (hurry) {
            pm_private_finish_copy();
            CHECK(pm_os_one_thread());
            unsigned count;
            pm_private_runs(&count);
            CHECK_EQ(count, 0);
        }
        MUST(read(fd[0], &(char){0}, 1) == 1);
        for (size_t at = 0; at < bytes; at += PM_PAGE_SIZE) {
            CHECK_EQ(p[at / sizeof *p], at);
            CHECK_EQ(p[at / sizeof *p + 1], at % (3 * PM_PAGE_SIZE) ? 0 : 5);
        }
        _exit(check_failures != 0);
    }
    pm_fork_gate_wait(gate, never);
    CHECK_EQ(atomic_load(&gate->word), 0);
    memset(p, 9, bytes);
    MUST(write(fd[1], "", 1) == 1);
    CHECK_EQ(ended(pid), 0);
    CHECK_EQ(p[1], 0x09090909);
}

static void test_copier(void) { copied_behind(0, false); }
static void test_copier_hurries(void) { copied_behind(1000000000, true); }

int main(void) {
    RUN_CHILD(every_end_opens_the_gate);
    RUN_CHILD(waiting_can_be_given_up);
    RUN_CHILD(a_thread_that_is_exiting_does_not_count);
    RUN_CHILD(what_proc_tells);
    RUN_CHILD(copier);
    RUN_CHILD(copier_hurries);
    return CHECK_DONE();
}

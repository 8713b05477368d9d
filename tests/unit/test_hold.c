// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// While threads are held, one that runs stands still, one that sleeps in a call stays asleep, and
// the holder finds where the call may store. tests/integration/test_hold.py tests the rest.
#include "threads/hold.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "threads/calls.h"

#define HOLDS 50
#define STOPS 8
#define STOP_MS 300

static _Atomic unsigned long counter;
static _Atomic bool over;
static char buffer[100];
static bool found;

static void *count(void *unused) {
    (void)unused;
    while (!over)
        counter++;
    return NULL;
}

static void *sleep_in_calls(void *unused) {
    (void)unused;
    while (!over) {
        struct pm_call call = {.memory = {{buffer, sizeof buffer}}};
        pm_call_enter(&call);
        CHECK_EQ(poll(NULL, 0, 20), 0);
        pm_call_leave(&call);
    }
    return NULL;
}

static void look_at(void *at, size_t len, void *arg) {
    (void)arg;
    found |= at == buffer && len == sizeof buffer;
}

static void test_held(void) {
    CHECK(pm_hold_all(10000));
    unsigned long before = counter;
    pm_hold_each_memory(look_at, NULL);
    errno = 77;
    CHECK_EQ(poll(NULL, 0, 2), 0);
    CHECK_EQ(counter, before);
    pm_release_all();
    CHECK_EQ(errno, 77);
}

// A debugger or a backup stops the whole process, holder and all. The holder's patience does not
// end meanwhile.
static void test_stopped_amid_a_hold(void) {
    pid_t pid = getpid(), stopper = fork();
    if (stopper == 0) {
        for (int i = 0; i < STOPS; i++) {
            usleep(50000);
            kill(pid, SIGSTOP);
            usleep(STOP_MS * 1000);
            kill(pid, SIGCONT);
        }
        _exit(0);
    }
    while (waitpid(stopper, NULL, WNOHANG) == 0) {
        bool held = pm_hold_all(STOP_MS / 2);
        CHECK(held);
        if (held)
            pm_release_all();
    }
}

int main(void) {
    pthread_t thread[2];
    CHECK(pm_hold_prepare());
    pthread_create(&thread[0], NULL, count, NULL);
    pthread_create(&thread[1], NULL, sleep_in_calls, NULL);
    for (int i = 0; i < HOLDS || (!found && i < 20 * HOLDS); i++) // the thread may begin late
        test_held();
    CHECK(found);
    test_stopped_amid_a_hold();
    over = true;
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A holder tells whether all threads are in calls that wait (PMALLOC_COMMIT=idle). A thread that
// runs is in none, nor is one in another call, nor one whose handler has interrupted a wait.
#include "threads/hold.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "check.h"
#include "threads/calls.h"

#define HOLDS 20
#define TRIES 10000

enum mode { WAITS, OTHER, RUNS, HANDLES, OVER };

static _Atomic int wanted, seen;
static _Atomic bool handling;

static void spin(void) {
    while (wanted == seen) {
    }
}

static void handle(int number) {
    (void)number;
    seen = HANDLES;
    handling = true;
    spin();
}

static void call(enum pm_call_kind kind) {
    struct pm_call call = {.kind = (uint8_t)kind};
    pm_call_enter(&call);
    poll(NULL, 0, seen == HANDLES ? 10000 : 5);
    pm_call_leave(&call);
}

static void *work(void *unused) {
    while (wanted != OVER) {
        seen = wanted;
        if (seen == RUNS)
            spin();
        else
            call(seen == OTHER ? PM_CALL_OTHER : PM_CALL_WAITS);
    }
    return unused;
}

static void want(enum mode mode) {
    wanted = mode;
    while (seen != (int)mode)
        poll(NULL, 0, 1);
}

static bool all_wait(void) {
    CHECK(pm_hold_all(10000));
    bool answer = pm_hold_all_wait();
    pm_release_all();
    return answer;
}

static void test_waits(void) {
    unsigned tries = 0;
    want(WAITS);
    while (!all_wait() && ++tries < TRIES) { // it may have been between two calls
    }
    CHECK(tries < TRIES);
}

static void check_busy(void) {
    for (int i = 0; i < HOLDS; i++)
        CHECK(!all_wait());
}

static void test_other_call(void) {
    want(OTHER);
    poll(NULL, 0, 20); // the last wait is over
    check_busy();
}

static void test_runs(void) {
    want(RUNS);
    check_busy();
}

static pthread_t thread;

static void test_handler(void) {
    want(WAITS);
    wanted = HANDLES;
    pthread_kill(thread, SIGUSR1);
    while (!handling)
        poll(NULL, 0, 1);
    check_busy();
}

int main(void) {
    signal(SIGUSR1, handle);
    CHECK(pm_hold_prepare());
    pthread_create(&thread, NULL, work, NULL);
    RUN(waits);
    RUN(other_call);
    RUN(runs);
    RUN(handler);
    wanted = OVER;
    pthread_join(thread, NULL);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A lock admits one holder, wakes its sleepers, keeps errno, and can be reset in a forked child.
#include "base/lock.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#include "check.h"

#define ROUNDS 300000

static struct pm_lock lock = PM_LOCK(PM_RANK_BIN);
static unsigned long counter;

static void *count(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        pm_lock(&lock);
        counter++;
        pm_unlock(&lock);
    }
    return NULL;
}

static void test_two_threads_count(void) {
    pthread_t thread[2];
    for (int t = 0; t < 2; t++)
        pthread_create(&thread[t], NULL, count, NULL);
    for (int t = 0; t < 2; t++)
        pthread_join(thread[t], NULL);
    CHECK_EQ(counter, 2ul * ROUNDS);
    CHECK_EQ(lock.word, 0);
}

static void *wait_for_it(void *got) {
    errno = 77;
    pm_lock(&lock);
    *(int *)got = errno;
    pm_unlock(&lock);
    return NULL;
}

static void test_a_sleeper_is_woken(void) {
    pthread_t thread[3];
    int got[3] = {0};
    pm_lock(&lock);
    for (int t = 0; t < 3; t++)
        pthread_create(&thread[t], NULL, wait_for_it, &got[t]);
    while (lock.word != 2) // until one of them sleeps
        usleep(100);
    for (int t = 0; t < 3; t++)
        CHECK_EQ(got[t], 0);
    pm_unlock(&lock);
    for (int t = 0; t < 3; t++) {
        pthread_join(thread[t], NULL);
        CHECK_EQ(got[t], 77);
    }
    CHECK_EQ(lock.word, 0);
}

static void test_reset_after_fork(void) {
    pm_lock(&lock);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        pm_lock_reset(&lock);
        pm_lock(&lock);
        _exit(7);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    pm_unlock(&lock);
}

#ifdef PM_DEBUG // make sanitize
static struct pm_lock higher = PM_LOCK(PM_RANK_EXTENT), of_no_rank;

// Takes one lock, then another, in a child. Returns whether the ranks allowed it.
static bool may_take(struct pm_lock *first, struct pm_lock *then) {
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO); // the assertion's message
        pm_lock(first);
        pm_lock(then);
        pm_unlock(then);
        pm_unlock(first);
        pm_lock(first);
        _exit(7);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

static void test_ranks_rise(void) {
    static struct pm_lock peer;
    pm_lock_init(&peer, PM_RANK_BIN);
    CHECK(may_take(&lock, &higher));
    CHECK(!may_take(&higher, &lock));
    CHECK(!may_take(&lock, &peer));
    CHECK(!may_take(&lock, &of_no_rank));
}
#endif

int main(void) {
    RUN(two_threads_count);
    RUN(a_sleeper_is_woken);
    RUN(reset_after_fork);
#ifdef PM_DEBUG
    RUN(ranks_rise);
#endif
    return CHECK_DONE();
}

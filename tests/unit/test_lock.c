// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The lock excludes, wakes its sleepers, keeps errno, and can be reset in a forked child.
#include "lock.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#include "check.h"

#define ROUNDS 300000

static struct pm_lock lock;
static unsigned long counter;

static void *count(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        pm_lock(&lock, PM_RANK_BIN);
        counter++;
        pm_unlock(&lock, PM_RANK_BIN);
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
    pm_lock(&lock, PM_RANK_BIN);
    *(int *)got = errno;
    pm_unlock(&lock, PM_RANK_BIN);
    return NULL;
}

static void test_a_sleeper_is_woken(void) {
    pthread_t thread[3];
    int got[3] = {0};
    pm_lock(&lock, PM_RANK_BIN);
    for (int t = 0; t < 3; t++)
        pthread_create(&thread[t], NULL, wait_for_it, &got[t]);
    usleep(50000);
    for (int t = 0; t < 3; t++)
        CHECK_EQ(got[t], 0);
    CHECK_EQ(lock.word, 2);
    pm_unlock(&lock, PM_RANK_BIN);
    for (int t = 0; t < 3; t++) {
        pthread_join(thread[t], NULL);
        CHECK_EQ(got[t], 77);
    }
    CHECK_EQ(lock.word, 0);
}

static void test_reset_after_fork(void) {
    pm_lock(&lock, PM_RANK_BIN);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        pm_lock_reset(&lock);
        pm_lock(&lock, PM_RANK_BIN);
        _exit(7);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    pm_unlock(&lock, PM_RANK_BIN);
}

int main(void) {
    RUN(two_threads_count);
    RUN(a_sleeper_is_woken);
    RUN(reset_after_fork);
    return CHECK_DONE();
}

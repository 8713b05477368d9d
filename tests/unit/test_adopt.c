// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Each object in old memory is adopted once, by one thread. Objects may start every 4 bytes. Memory
// of this run needs no adoption.
#include "media/adopt.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "base/os.h"
#include "check.h"
#include "media/heap.h"

#define OLD 8192
#define OBJECTS 1000
#define THREADS 8

static char near[2][256] __attribute__((aligned(4096))); // roots
static char *heap;

static void test_nothing_is_old(void) {
    CHECK(pm_surely_adopted(heap));
    CHECK(pm_surely_adopted(near));
    CHECK(pm_surely_adopted(NULL));
    CHECK(!pm_adopt_begin(heap));
}

static void test_ranges(void) {
    struct pm_error err;
    CHECK_EQ(pm_old_heap(OLD, &err), PM_OK);
    CHECK_EQ(pm_old_root((uintptr_t)near[0] + 16, 32, &err), PM_OK);
    CHECK_EQ(pm_old_root((uintptr_t)near[1] + 16, 32, &err), PM_OK);
    CHECK(pm_adopted(heap - 1));
    CHECK(!pm_adopted(heap));
    CHECK(!pm_adopted(heap + OLD - 4));
    CHECK(pm_adopted(heap + OLD));
    for (int i = 0; i < 2; i++) {
        CHECK(pm_adopted(near[i] + 15));
        CHECK(!pm_adopted(near[i] + 16));
        CHECK(!pm_adopted(near[i] + 44));
        CHECK(pm_adopted(near[i] + 48)); // after the root's last byte
    }
    CHECK(!pm_surely_adopted(near[0] + 100));
    CHECK(pm_surely_adopted(near[1] + 48));
}

static void test_each_object_once(void) {
    CHECK(pm_adopt_begin(heap + 64));
    pm_adopt_end(heap + 64);
    CHECK(!pm_adopt_begin(heap + 64));
    CHECK(pm_surely_adopted(heap + 64));
    CHECK(!pm_adopted(heap + 60)); // objects 4 bytes before and after are not adopted
    CHECK(!pm_adopted(heap + 68));
    pm_adopt_fresh(near[1] + 20);
    CHECK(!pm_adopt_begin(near[1] + 20));
    CHECK(!pm_adopted(near[0] + 20));
    pm_adopt_fresh(&heap); // of this run: has no effect
}

static bool blocked(int signal) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    return sigismember(&now, signal) == 1;
}

static void test_no_handler_in_between(void) {
    CHECK(pm_adopt_begin(heap + 128));
    CHECK(blocked(SIGUSR1));
    pm_adopt_end(heap + 128);
    CHECK(!blocked(SIGUSR1));
    CHECK(!pm_adopt_begin(heap + 128));
    CHECK(!blocked(SIGUSR1));
}

static _Atomic bool is_clear, was_second;

static void *come_second(void *object) {
    was_second = !pm_adopt_begin(object) && is_clear;
    return NULL;
}

// The second thread waits until the first has cleared the object.
static void test_second_waits(void) {
    pthread_t second;
    CHECK(pm_adopt_begin(heap + 256));
    CHECK_EQ(pthread_create(&second, NULL, come_second, heap + 256), 0);
    while (pm_adopt_lock.word != 2) // until the second thread sleeps
        sched_yield();
    is_clear = true;
    pm_adopt_end(heap + 256);
    pthread_join(second, NULL);
    CHECK(was_second);
}

// not atomic: the adoption itself must make the store visible to all threads
static unsigned cleared[OBJECTS];

static void *use_all(void *unused) {
    (void)unused;
    uintptr_t wrong = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        char *object = heap + 1024 + 4 * i;
        if (!pm_surely_adopted(object) && pm_adopt_begin(object)) {
            cleared[i]++;
            pm_adopt_end(object);
        }
        wrong += cleared[i] != 1;
    }
    return (void *)wrong;
}

static void test_threads(void) {
    pthread_t thread[THREADS];
    for (int t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&thread[t], NULL, use_all, NULL), 0);
    for (int t = 0; t < THREADS; t++) {
        void *wrong;
        pthread_join(thread[t], &wrong);
        CHECK_EQ((uintptr_t)wrong, 0);
    }
}

int main(void) {
    heap = aligned_alloc(4096, 2 * OLD);
    pm_base = (uint64_t)(uintptr_t)heap;
    RUN(nothing_is_old);
    RUN(ranges);
    RUN(each_object_once);
    RUN(no_handler_in_between);
    RUN(second_waits);
    RUN(threads);
    return CHECK_DONE();
}

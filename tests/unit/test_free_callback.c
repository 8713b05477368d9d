// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// pmalloc_set_free_callback(): frees that the program's function takes over, of every size and by
// every thread.
#include <pthread.h>

#include "blocks/alloc.h"
#include "blocks/verify.h"
#include "session.h"

#define MOST 100000u

static void *_Atomic held[MOST];
static _Atomic unsigned asked, count;
static _Atomic bool takes = true;

static int taker(void *p) {
    atomic_fetch_add(&asked, 1);
    if (!takes)
        return 0;
    held[atomic_fetch_add(&count, 1)] = p;
    return 1;
}

static size_t size_of(unsigned i) { return i % 10 ? 8 + i % 3000 : 20000 + i * 100; }

static void begin(void) {
    settings();
    pm_process_before_main();
}

static void test_held_back(void) {
    begin();
    static char *block[600];
    for (unsigned i = 0; i < 600; i++)
        pm_free(pm_malloc(size_of(i))); // caches are warm
    CHECK_EQ(asked, 0);
    pmalloc_set_free_callback(taker);
    for (unsigned round = 0; round < 3; round++) {
        unsigned before = count;
        for (unsigned i = 0; i < 600; i++) {
            block[i] =
                i % 7 ? pm_malloc(size_of(i)) : pmalloc_alloc(size_of(i), 0, PMALLOC_POINTER_FREE);
            memset(block[i], (int)i, size_of(i));
        }
        for (unsigned i = 0; i < 600; i++)
            pm_free(block[i]);
        pm_free(NULL);
        CHECK_EQ(count, before + 600);
        for (unsigned i = 0; i < 600; i++) { // they are as they were, and nobody else has them
            memset(pm_malloc(size_of(i)), 0xff, size_of(i));
            CHECK(held[before + i] == block[i] && block[i][size_of(i) - 1] == (char)i);
        }
        for (unsigned i = 0; i < 600; i++)
            pmalloc_free_now(held[before + i]);
        CHECK_EQ(count, before + 600);
        for (unsigned i = 0; i < 600; i++)
            CHECK_EQ(pm_find_tag(block[i]), PM_TAG_NONE);
        verify();
    }
    takes = false;
    unsigned before = asked;
    char *p = pm_malloc(100);
    CHECK(pm_realloc(p, 5000) != p && asked == before + 1); // the old block
    pmalloc_op op[1];
    (void)!pmalloc_reserve(&op[0], 100, 0, 0);
    pmalloc_cancel(op, 1);
    CHECK_EQ(asked, before + 1);
    pmalloc_set_free_callback(NULL);
    pm_free(pm_malloc(100));
    pm_free(pm_malloc(100000));
    CHECK_EQ(asked, before + 1);
    verify();
}

static void *worker(void *arg) {
    (void)arg;
    for (unsigned i = 0; i < 5000; i++)
        pm_free(pm_malloc(size_of(i)));
    return NULL;
}

static void test_threads(void) {
    pthread_t thread[4];
    begin();
    pmalloc_set_free_callback(taker);
    for (unsigned i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, worker, NULL) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(count >= 20000);
    for (unsigned i = 0; i < count; i++)
        pmalloc_free_now(held[i]);
    verify();
}

int main(void) {
    RUN_CHILD(held_back);
    RUN_CHILD(threads);
    return CHECK_DONE();
}

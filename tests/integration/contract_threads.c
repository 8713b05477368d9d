// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that free each other's blocks, that end, and that allocate in their destructors.
#include "contract.h"

#include <pthread.h>

static void *mailbox[64];

static void *sender(void *argument) {
    uint64_t r = (uintptr_t)argument;
    for (int i = 0; i < 30000; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        size_t size = sizeof(size_t) + (r >> 33) % ((r >> 20) % 50 ? 500 : 70000);
        size_t *p = my_malloc(size);
        CHECK(p);
        memset(p, (int)size, size);
        *p = size;
        size_t *old = __atomic_exchange_n(&mailbox[r >> 58], p, __ATOMIC_ACQ_REL);
        if (old) { // any thread may have allocated it
            size = *old;
            CHECK(all_are(old + 1, (unsigned char)size, size - sizeof *old));
            my_free(old);
        }
    }
    return NULL;
}

void threads(void) {
    for (int round = 0; round < 3; round++) {
        pthread_t id[6];
        for (uintptr_t i = 0; i < 6; i++)
            CHECK(pthread_create(&id[i], NULL, sender, (void *)(i + 1)) == 0);
        for (int i = 0; i < 6; i++)
            pthread_join(id[i], NULL);
    }
    for (int i = 0; i < 64; i++)
        my_free(mailbox[i]);
}

static pthread_key_t key;
static int destroyed;

// Allocates and frees when the thread's cache may be gone already. Runs three times per thread.
static void at_thread_end(void *value) {
    for (int i = 0; i < 50; i++) {
        char *p = my_malloc(10 + (size_t)i * 400);
        CHECK(p);
        memset(p, 1, 10 + (size_t)i * 400);
        p = my_realloc(p, 20 + (size_t)i * 500);
        CHECK(p && all_are(p, 1, 10 + (size_t)i * 400));
        my_free(p);
    }
    uintptr_t left = (uintptr_t)value;
    if (left > 1)
        pthread_setspecific(key, (void *)(left - 1));
    __atomic_fetch_add(&destroyed, 1, __ATOMIC_RELAXED);
}

static void *with_destructor(void *unused) {
    my_free(my_malloc(100));
    pthread_setspecific(key, (void *)3);
    return unused;
}

void tls_destructors(void) {
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    for (int round = 0; round < 50; round++) {
        pthread_t id[4];
        for (int i = 0; i < 4; i++)
            CHECK(pthread_create(&id[i], NULL, with_destructor, NULL) == 0);
        for (int i = 0; i < 4; i++)
            pthread_join(id[i], NULL);
    }
    CHECK(destroyed == 50 * 4 * 3);
    // The blocks that the destructors freed were not lost: the heap has not grown.
    CHECK(mallinfo2().uordblks < 4 << 20);
}

static void *idle(void *unused) {
    my_free(my_malloc(100));
    my_free(my_malloc(10000));
    return unused;
}

void many_threads(void) {
    size_t after_first = 0;
    for (int i = 0; i < 2000; i++) {
        pthread_t id;
        CHECK(pthread_create(&id, NULL, idle, NULL) == 0);
        pthread_join(id, NULL);
        struct mallinfo2 info = mallinfo2();
        if (i == 50)
            after_first = info.arena + info.hblkhd;
        CHECK(i <= 50 || info.arena + info.hblkhd <= after_first);
    }
}

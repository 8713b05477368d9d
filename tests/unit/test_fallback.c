// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The fallback arena. Its blocks are aligned, zeroed and disjoint, and known by their addresses. It
// is bounded, and serves several threads.
#include "base/fallback.h"

#include <pthread.h>
#include <stdint.h>

#include "check.h"

static void test_blocks(void) {
    char *last_end = NULL;
    unsigned parts = 1;
    CHECK(!pm_fallback_owns(NULL));
    for (size_t align = 1; align <= 65536; align *= 2)
        for (size_t size = 0; size < 200; size += 13) {
            char *p = pm_fallback_alloc(size, align);
            CHECK(p != NULL);
            if (!p)
                return;
            CHECK_EQ((uintptr_t)p % (align < 16 ? 16 : align), 0);
            CHECK(pm_fallback_owns(p) && pm_fallback_owns(p + size));
            CHECK_EQ(pm_fallback_size(p), size);
            parts += p < last_end; // the second part may lie anywhere
            CHECK(parts <= 2);
            CHECK(pm_fallback_is_block(p));
            CHECK(!pm_fallback_is_block(p + 16) && !pm_fallback_is_block(p + 1));
            for (size_t i = 0; i < size; i++)
                CHECK(p[i] == 0);
            memset(p, 0xee, size);
            last_end = p + size;
        }
    const int local = 0;
    CHECK(!pm_fallback_owns(&local));
}

// Only the last block in use can be given back. It reads as zeroes when it is handed out again.
static void test_free(void) {
    char *below = pm_fallback_alloc(100, 16), *first = pm_fallback_alloc(1000, 4096), *second;
    memset(first, 0xee, 1000);
    pm_fallback_free(below);
    CHECK(!pm_fallback_is_block(below) && pm_fallback_is_block(first));
    second = pm_fallback_alloc(10, 16);
    CHECK(second > first);
    pm_fallback_free(first);
    pm_fallback_free(second);
    CHECK(pm_fallback_alloc(10, 16) == second);
    pm_fallback_free(second);
    pm_fallback_free(first);
    char *again = pm_fallback_alloc(1000, 4096);
    CHECK(again == first);
    for (int i = 0; i < 1000; i++)
        CHECK(again[i] == 0);
}

static void *taker(void *arg) {
    char **blocks = arg;
    for (int i = 0; i < 1000; i++) {
        blocks[i] = pm_fallback_alloc(64, 16);
        if (blocks[i])
            memset(blocks[i], (int)(1 + i % 100), 64);
    }
    return NULL;
}

static void test_two_threads(void) {
    static char *blocks[2][1000];
    pthread_t thread[2];
    for (int t = 0; t < 2; t++)
        pthread_create(&thread[t], NULL, taker, blocks[t]);
    for (int t = 0; t < 2; t++)
        pthread_join(thread[t], NULL);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 1000; i++) {
            CHECK(blocks[t][i] && pm_fallback_size(blocks[t][i]) == 64);
            for (int at = 0; blocks[t][i] && at < 64; at++)
                CHECK(blocks[t][i][at] == (char)(1 + i % 100));
        }
}

static void test_used_up(void) {
    CHECK(pm_fallback_alloc((size_t)65 << 20, 16) == NULL);
    CHECK(pm_fallback_alloc(SIZE_MAX, 16) == NULL);
    CHECK(pm_fallback_alloc(16, (size_t)1 << 40) == NULL);
    int blocks = 0;
    while (pm_fallback_alloc((size_t)1 << 20, 16))
        blocks++;
    CHECK(blocks >= 50 && blocks < 64);
    CHECK(pm_fallback_alloc(1024, 16) != NULL); // the rest still serves small requests
}

int main(void) {
    RUN(free); // first: so all its blocks lie in one part, one behind the other
    RUN(blocks);
    RUN(two_threads);
    RUN(used_up);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The allocation functions in volatile mode: against a model with fill patterns, with two threads,
// and the contracts of malloc(3). Misuse is in test_misuse.c.
#include "process/entry.h"

#include <pthread.h>
#include <stdlib.h>

#include "blocks/stats.h"
#include "heap_fixture.h"
#include "pages/extent_take.h"
#include "pages/frontier.h"
#include "process/start.h"

static void start(void) { setenv("PMALLOC_BACKING", "volatile", 1); }

struct block {
    uint8_t *p;
    size_t size;
    uint8_t fill;
};

static uint64_t own_rnd(uint64_t *seed, uint64_t below) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % below;
}

static size_t random_size(uint64_t *seed) {
    switch (own_rnd(seed, 20)) {
    case 0:
        return own_rnd(seed, 3 << 20);
    case 1:
    case 2:
        return own_rnd(seed, 200000);
    case 3:
    case 4:
    case 5:
        return own_rnd(seed, 20000);
    default:
        return own_rnd(seed, 500);
    }
}

// Fills both ends and a few places between. That is enough to notice a block that overlaps.
static void fill(struct block *b, size_t from) {
    if (b->size <= 4096) {
        memset(b->p + from, b->fill, b->size - from);
        return;
    }
    for (size_t at = from; at < b->size; at += 509)
        b->p[at] = b->fill;
    b->p[b->size - 1] = b->fill;
}

static unsigned wrong(const struct block *b, size_t upto) {
    unsigned bad = 0;
    if (b->size <= 4096) {
        for (size_t at = 0; at < upto; at++)
            bad += b->p[at] != b->fill;
        return bad;
    }
    for (size_t at = 0; at < upto; at += 509)
        bad += b->p[at] != b->fill;
    if (upto == b->size)
        bad += b->p[b->size - 1] != b->fill;
    return bad;
}

static void check_new(const struct block *b, size_t align) {
    CHECK(b->p != NULL);
    CHECK_EQ((uintptr_t)b->p % align, 0);
    CHECK(pm_in_range(b->p));
    CHECK(pm_usable_size(b->p) >= b->size);
}

static void allocate(struct block *b, uint64_t *seed) {
    b->size = random_size(seed);
    b->fill = (uint8_t)own_rnd(seed, 256);
    size_t align = 16;
    switch (own_rnd(seed, 4)) {
    case 0:
        b->p = pm_calloc(b->size / 8 + 1, 8);
        for (size_t at = 0; b->p && at<b->size; at += b->size> 4096 ? 509 : 1)
            if (b->p[at]) {
                CHECK(!"calloc returned memory that is not zero");
                break;
            }
        break;
    case 1:
        align = (size_t)1 << own_rnd(seed, 18);
        b->p = pm_memalign(align, b->size);
        align = align < 16 ? 16 : align;
        break;
    default:
        b->p = pm_malloc(b->size);
    }
    check_new(b, align);
    fill(b, 0);
}

static void resize(struct block *b, uint64_t *seed) {
    size_t size =
        own_rnd(seed, 3) ? random_size(seed) + 1 : b->size + 1 + own_rnd(seed, b->size / 2 + 10);
    size_t old = b->size, kept = size < old ? size : old;
    b->p = pm_realloc(b->p, size);
    CHECK(b->p != NULL);
    CHECK_EQ(wrong(b, kept), 0); // the bytes of the old size kept their pattern
    b->size = size;
    fill(b, 0);
    check_new(b, 16);
}

static void step(struct block *b, uint64_t *seed) {
    if (!b->p) {
        allocate(b, seed);
    } else if (own_rnd(seed, 4) == 0) {
        resize(b, seed);
    } else {
        CHECK_EQ(wrong(b, b->size), 0);
        pm_free(b->p);
        b->p = NULL;
    }
}

static void test_model(void) {
    start();
    static struct block blocks[700];
    uint64_t seed = 42;
    for (int i = 0; i < 60000 && !check_failures; i++)
        step(&blocks[own_rnd(&seed, 700)], &seed);
    for (int i = 0; i < 700; i++)
        if (blocks[i].p) {
            CHECK_EQ(wrong(&blocks[i], blocks[i].size), 0);
            pm_free(blocks[i].p);
        }
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes, 0);
    CHECK_EQ(s.large_blocks, 0);
    pm_trim();
    pm_stats_get(&s);
    CHECK_EQ(s.cached_bytes, 0);
    CHECK_EQ(s.reclaimed_bytes, 0);
}

// ---- two threads, freeing each other's blocks ---------------------------------------------------

#define SHARED 256
static _Atomic(struct block *) shared[SHARED];

static void *worker(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 60000; i++) {
        struct block *fresh = NULL;
        if (own_rnd(&seed, 3)) {
            fresh = pm_malloc(sizeof *fresh);
            allocate(fresh, &seed);
        }
        struct block *old = atomic_exchange(&shared[own_rnd(&seed, SHARED)], fresh);
        if (!old)
            continue;
        CHECK_EQ(wrong(old, old->size), 0);
        pm_free(old->p);
        pm_free(old);
        if (check_failures)
            break;
    }
    return NULL;
}

static void run_workers(void) {
    pthread_t thread[2];
    for (uintptr_t t = 0; t < 2; t++)
        pthread_create(&thread[t], NULL, worker, (void *)(t * 77 + 1234567));
    for (int t = 0; t < 2; t++)
        pthread_join(thread[t], NULL);
}

static void test_two_threads(void) {
    start();
    for (int round = 0; round < 2; round++)
        run_workers();
    for (int i = 0; i < SHARED; i++) {
        struct block *b = shared[i];
        if (!b)
            continue;
        CHECK_EQ(wrong(b, b->size), 0);
        pm_free(b->p);
        pm_free(b);
    }
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.threads, 1); // the workers' caches ended with the workers
    CHECK_EQ(s.small_used_bytes, 0);
    CHECK_EQ(s.large_blocks, 0);
}

// ---- contracts ----------------------------------------------------------------------------------

static void test_every_small_size(void) {
    start();
    for (size_t size = 0; size <= PM_SMALL_MAX + 5000; size += size < 1100 ? 1 : 61) {
        uint8_t *p = pm_malloc(size), *q = pm_malloc(size);
        CHECK(p && q && p != q);
        size_t usable = pm_usable_size(p);
        CHECK(usable >= size && usable >= 16);
        memset(p, 1, usable); // the whole usable size may be written
        memset(q, 2, pm_usable_size(q));
        CHECK(p[0] == 1 && p[usable - 1] == 1);
        pm_free(q);
        pm_free(p);
    }
    CHECK_EQ(pm_usable_size(NULL), 0);
}

static void test_every_alignment(void) {
    start();
    for (size_t align = 1; align <= (size_t)64 << 20; align *= 2)
        for (unsigned i = 0; i < 12; i++) {
            static const size_t sizes[] = {0,    1,     24,    100,   1000,   4096,
                                           5000, 16384, 16385, 65536, 300000, 5000000};
            char *p = pm_memalign(align, sizes[i]);
            CHECK(p && (uintptr_t)p % align == 0 && pm_usable_size(p) >= sizes[i]);
            if (!p)
                continue;
            p[0] = 1;
            p[sizes[i] ? sizes[i] - 1 : 0] = 2;
            pm_free(p);
        }
}

static void test_errno_and_failures(void) {
    start();
    setenv("PMALLOC_LIMIT", "64M", 1);
    static const size_t much[] = {SIZE_MAX, SIZE_MAX - 4096, PTRDIFF_MAX, (size_t)1 << 47,
                                  (size_t)65 << 20};
    char *p = pm_malloc(100);
    memset(p, 5, 100);
    for (unsigned i = 0; i < sizeof much / sizeof much[0]; i++) {
        errno = 0;
        CHECK(pm_malloc(much[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(pm_calloc(1, much[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(pm_memalign(64, much[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(pm_realloc(p, much[i]) == NULL && errno == ENOMEM);
        CHECK(p[0] == 5 && p[99] == 5);
    }
    errno = 0;
    CHECK(pm_calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pm_calloc((size_t)1 << 33, (size_t)1 << 33) == NULL && errno == ENOMEM);
    CHECK(pm_memalign((size_t)1 << 62, 16) == NULL);
    errno = 77;
    pm_free(p);
    pm_free(NULL);
    void *large = pm_malloc(1 << 20);
    errno = 77;
    pm_free(large);
    CHECK_EQ(errno, 77);
    CHECK(pm_calloc(0, 5) != NULL);
}

static void test_out_of_memory_and_back(void) {
    start();
    setenv("PMALLOC_LIMIT", "16M", 1);
    static void *blocks[2000];
    unsigned count = 0;
    errno = 0;
    for (; count < 2000 && (blocks[count] = pm_malloc(10000)) != NULL; count++)
        memset(blocks[count], (int)count, 10000);
    CHECK(errno == ENOMEM && count > 1400 && count < 1640);
    CHECK(pm_malloc(1 << 20) == NULL);
    for (unsigned i = 0; i < count; i++)
        pm_free(blocks[i]);
    pm_trim();
    void *large = pm_malloc(12 << 20);
    CHECK(large != NULL);
}

// Huge blocks lie at multiples of 2 MiB where there is room for it.
static void test_a_huge_block_takes_the_only_hole(void) {
    start();
    setenv("PMALLOC_LIMIT", "32M", 1);
    enum { MIB = 1 << 20, LENGTH = 5 * MIB / 2 };
    char *huge = pm_malloc(LENGTH);
    CHECK((uintptr_t)huge % (2 * MIB) == 0);
    static char *blocks[32];
    unsigned count = 0, first = 0;
    while (count < 32 && (blocks[count] = pm_malloc(MIB)) != NULL)
        count++;
    CHECK(count > 20 && pm_malloc(LENGTH) == NULL);
    // Three in a row, so that a block that begins at a multiple of 2 MiB does not fit there.
    for (unsigned i = 0; i + 2 < count; i++)
        if (-(uintptr_t)blocks[i] % (2 * MIB) > MIB / 2 && blocks[i + 2] == blocks[i] + 2 * MIB &&
            blocks[i + 1] == blocks[i] + MIB)
            first = i;
    CHECK(first > 0);
    for (unsigned i = first; i < first + 3; i++)
        pm_free(blocks[i]);
    CHECK(pm_memalign(2 * MIB, LENGTH) == NULL);
    char *last = pm_malloc(LENGTH);
    CHECK(last >= blocks[first] && last + LENGTH <= blocks[first] + 3 * MIB);
}

static void test_realloc(void) {
    start();
    CHECK(pm_realloc(NULL, 40) != NULL);
    char *p = pm_malloc(40);
    CHECK(pm_realloc(p, 0) == NULL);
    p = pm_malloc(100);
    CHECK(pm_realloc(p, 110) == p); // the same class
    p = pm_realloc(p, 20000);
    char *large = pm_realloc(p, 24000);
    CHECK(large != NULL);
    large = pm_realloc(large, 1 << 20);
    large[(1 << 20) - 1] = 1;
    char *less = pm_realloc(large, 500000);
    CHECK(less == large);
    CHECK(pm_usable_size(less) < 1 << 20);
    // A vector that grows. It is the last extent of the heap, so it can mostly grow in place.
    size_t size = 100000;
    unsigned moves = 0;
    for (char *v = pm_malloc(size); size < 50000000; size += size / 2) {
        char *next = pm_realloc(v, size + size / 2);
        CHECK(next != NULL);
        moves += next != v;
        v = next;
    }
    CHECK(moves <= 8);
}

static void test_blocks_are_in_address_order_when_fresh(void) {
    start();
    char *last = pm_malloc(48);
    unsigned rising = 0;
    for (unsigned i = 0; i < 1000; i++) {
        char *p = pm_malloc(48);
        rising += p == last + 48;
        last = p;
    }
    CHECK(rising >= 990);
}

// ---- requests in a signal handler ---------------------------------------------------------------

// The signal interrupted a request on the thread cache. The handler's requests leave the cached
// stacks as they are.
static void test_a_handler_leaves_the_stack_alone(void) {
    void *warm = pm_malloc(64);
    pm_free(warm);
    unsigned cls = pm_size_to_class(64);
    struct pm_stack *s = &pm_tcache->stack[cls];
    void **slot = pm_tcache->slot[cls], *first = slot[0];
    uint64_t n = s->n;
    CHECK(pm_stack_seize(s) && n > 0);
    void *block[40];
    for (int i = 0; i < 40; i++) {
        block[i] = pm_malloc(64);
        CHECK(block[i] != NULL);
        for (uint64_t k = 0; k < n; k++)
            CHECK(slot[k] != block[i]);
        CHECK_EQ(pm_usable_size(block[i]), 64);
        memset(block[i], 0x77, 64);
    }
    pm_trim(); // does not touch the stack in use
    for (int i = 0; i < 40; i++)
        pm_free(block[i]);
    CHECK_EQ(pm_stack_count(s), n);
    CHECK_EQ(s->seized, -1);
    CHECK(slot[0] == first);
    pm_stack_leave(s);
    CHECK(pm_malloc(64) == warm);
    pm_free(warm);
}

// The signal interrupted a thread that held a lock. The handler does not wait for that lock. What
// the handler frees is freed later, by the thread itself.
static void test_a_handler_does_not_wait_for_its_thread(void) {
    struct pm_stats before, after;
    void *small[PM_DEFERRED_MAX / 2], *large[PM_DEFERRED_MAX / 2];
    pm_free(pm_malloc(16000));
    pm_stats_get(&before);
    for (int i = 0; i < PM_DEFERRED_MAX / 2; i++) {
        small[i] = pm_malloc(16000); // more blocks than a cache holds, so some take the slow path
        large[i] = pm_malloc(100000);
    }
    pm_lock(&pm_heap.shard[0].lock);
    char *p = pm_malloc(300000), *more = pm_realloc(large[0], 200000);
    CHECK(p && more);
    CHECK_EQ(pm_usable_size(large[1]) >= 100000, true);
    memset(p, 1, 300000);
    memset(more, 2, 200000);
    pm_free(p);
    pm_free(more);
    for (int i = 0; i < PM_DEFERRED_MAX / 2; i++) {
        pm_free(small[i]);
        if (i)
            pm_free(large[i]);
    }
    pm_unlock(&pm_heap.shard[0].lock);
    pm_free(pm_malloc(100000));
    pm_stats_get(&after);
    CHECK_EQ(after.large_blocks, before.large_blocks);
    CHECK_EQ(after.small_used_bytes, before.small_used_bytes);
}

int main(void) {
    RUN_CHILD(model);
    RUN_CHILD(two_threads);
    RUN_CHILD(every_small_size);
    RUN_CHILD(every_alignment);
    RUN_CHILD(errno_and_failures);
    RUN_CHILD(out_of_memory_and_back);
    RUN_CHILD(a_huge_block_takes_the_only_hole);
    RUN_CHILD(realloc);
    RUN_CHILD(blocks_are_in_address_order_when_fresh);
    RUN_CHILD(a_handler_leaves_the_stack_alone);
    RUN_CHILD(a_handler_does_not_wait_for_its_thread);
    return CHECK_DONE();
}

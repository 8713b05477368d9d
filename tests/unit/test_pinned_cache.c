// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Caches of pinned blocks: the order in which blocks leave, what media say of them meanwhile, who
// takes them back, and that a kill finds neither a lost block nor one of two owners.
#include <pthread.h>
#include <sys/wait.h>

#include "base/bits.h"
#include "blocks/alloc.h"
#include "blocks/kinds.h"
#include "blocks/pinned.h"
#include "blocks/pinned_cache.h"
#include "blocks/stats.h"
#include "session.h"

#define SIZE 64u
#define CLASS 4u

static void begin_with(const char *persist) {
    settings();
    setenv("PMALLOC_PERSIST", persist, 1);
    pm_process_before_main();
}

static void begin(void) { begin_with("line"); }

static void *pinned(size_t size) { return pmalloc_alloc(size, 0, PMALLOC_PINNED); }

static unsigned number_of(const void *p, unsigned cls) {
    return pm_block_index(cls, (uint32_t)(pm_heap_offset(p) % PM_SLAB_SIZE));
}

static unsigned stripe_of(const void *p) { return number_of(p, CLASS) % PM_PINNED_STRIPES; }

static bool bit_of(const void *p) {
    uint64_t used[PM_BITMAP_WORDS];
    pm_pinned_used(pm_slab_of(p), used);
    return pm_bit(used, number_of(p, pm_vslabs[pm_slab_of(p)].size_class));
}

static unsigned cached(void) { return pm_pinned_cache_held(pm_tcache->pinned, CLASS); }

static void test_stripes_in_turn(void) {
    begin();
    CHECK(pm_malloc(SIZE) && !pm_tcache->pinned);
    char *last = pinned(SIZE);
    MUST(last && pm_tcache->pinned);
    for (unsigned i = 0; i < 3000; i++) {
        char *p = pinned(SIZE);
        MUST(p != NULL);
        CHECK(cached() >= PM_PINNED_STRIPES - 1);
        CHECK(pm_slab_of(p) != pm_slab_of(last) || stripe_of(p) != stripe_of(last));
        CHECK(*pm_tag_at(p) == PM_TAG_KIND && bit_of(p) && pm_usable_size(p) == SIZE);
        last = p;
    }
    verify();
}

// What was freed is not what is allocated next, and media say that it is free.
static void test_freed_blocks_wait(void) {
    static void *held[300];
    begin();
    for (unsigned i = 0; i < 300; i++)
        MUST(held[i] = pinned(SIZE));
    for (unsigned i = 0; i < 300; i++) {
        pm_free(held[i]);
        CHECK(!bit_of(held[i]) && *pm_tag_at(held[i]) == PM_TAG_NONE);
        void *p = pinned(SIZE);
        CHECK(p && p != held[i] && bit_of(p));
    }
    verify();
}

// Where lines are not flushed, the one that a free has just changed is changed by the next request.
static void test_caches_survive(void) {
    static void *held[300];
    begin_with("cache");
    for (unsigned i = 0; i < 300; i++)
        MUST(held[i] = pinned(SIZE));
    for (unsigned i = 0; i < 300; i++) {
        pm_free(held[i]);
        void *p = pinned(SIZE);
        CHECK(p && stripe_of(p) == stripe_of(held[i]) && bit_of(p));
    }
    verify();
}

static void test_kinds_stay_apart(void) {
    begin();
    for (unsigned i = 0; i < 500; i++) {
        void *p = pinned(SIZE), *q = pmalloc_alloc(SIZE, 0, PMALLOC_PINNED | PMALLOC_POINTER_FREE);
        MUST(p && q);
        CHECK_EQ(pm_find(p).kind, PM_KIND_PINNED);
        CHECK_EQ(pm_find(q).kind, PM_KIND_PINNED_POINTER_FREE);
        if (i % 3) {
            pm_free(p);
            pm_free(q);
        }
    }
    verify();
}

// Every size, from 16 bytes to 300 KB, with alignments; frees in another order.
static void test_sizes(void) {
    static char *held[2000];
    begin();
    for (unsigned round = 0; round < 20; round++)
        for (unsigned i = 0; i < 2000; i++) {
            unsigned k = (unsigned)rnd(2000);
            size_t size = 1 + rnd(rnd(50) ? 2000 : 300000);
            if (held[k])
                CHECK(bit_of(held[k]) || pm_usable_size(held[k]) > PM_SMALL_MAX);
            pm_free(held[k]);
            held[k] = pmalloc_alloc(size, i % 7 ? 0 : 128, PMALLOC_PINNED);
            MUST(held[k] != NULL);
            CHECK(i % 7 || (uintptr_t)held[k] % 128 == 0);
            memset(held[k], 'p', size);
        }
    verify();
}

static void test_trim_returns(void) {
    static void *held[5000];
    struct pm_stats s;
    begin();
    for (unsigned i = 0; i < 5000; i++)
        MUST(held[i] = pinned(SIZE));
    for (unsigned i = 0; i < 5000; i++)
        pm_free(held[i]);
    pm_stats_get(&s);
    CHECK(cached() > 0 && s.cls[CLASS].cached >= cached() && s.cls[CLASS].used == 0);
    CHECK(pm_trim());
    CHECK_EQ(cached(), 0);
    pm_stats_get(&s);
    CHECK_EQ(s.cls[CLASS].blocks, 0);
    CHECK(pinned(SIZE) != NULL);
    verify();
}

// ---- threads ------------------------------------------------------------------------------------

enum { THREADS = 4, SHARED = 256, ROUNDS = 20000 };
static _Atomic(uint64_t *) shared[SHARED];
static _Atomic bool over;

static void *work(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (unsigned i = 0; i < ROUNDS; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t *p = pinned(16 + (state >> 40) % 200);
        MUST(p != NULL);
        p[0] = p[1] = state;
        p = atomic_exchange(&shared[state >> 50 & (SHARED - 1)], p);
        if (p) {
            MUST(p[0] == p[1]);
            p[0] = 0;
            pm_free(p);
        }
    }
    return NULL;
}

static void *trim(void *unused) {
    (void)unused;
    while (!over)
        pm_trim();
    return NULL;
}

static int count_walked(void *p, size_t size, unsigned flags, void *arg) {
    (void)size;
    CHECK(flags == PMALLOC_PINNED && bit_of(p));
    ++*(uint64_t *)arg;
    return 0;
}

static uint64_t walked(void) {
    uint64_t count = 0;
    CHECK_EQ(pmalloc_walk(count_walked, &count), 0);
    return count;
}

// Blocks that others free; meanwhile one thread takes back all caches.
static void run_threads(void) {
    pthread_t thread[THREADS], trimmer;
    MUST(pthread_create(&trimmer, NULL, trim, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, work, (void *)(i * 77 + 5)) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    over = true;
    pthread_join(trimmer, NULL);
    uint64_t left = 0;
    for (unsigned i = 0; i < SHARED; i++)
        left += shared[i] != NULL;
    CHECK_EQ(walked(), left);
    verify();
}

static void run_and_die(void) {
    begin();
    run_threads();
    die();
}

static void run_and_close(void) {
    begin();
    run_threads();
    pm_process_end();
}

static uint64_t expected;

static void look(void) {
    begin();
    CHECK_EQ(walked(), expected);
    verify();
}

static void test_threads(void) {
    CHECK_EQ(in_child(run_and_die), 128 + SIGKILL);
    expected = SHARED;
    CHECK_EQ(in_child(look), 0);
    fixture_drop();
    fixture_make();
    CHECK_EQ(in_child(run_and_close), 0);
    CHECK_EQ(in_child(look), 0);
}

// ---- kills --------------------------------------------------------------------------------------

// Reserved blocks and blocks in caches are free after a kill.
static void reserve_and_die(void) {
    pmalloc_op op[100];
    begin();
    for (unsigned i = 0; i < 100; i++) {
        MUST(pinned(SIZE) != NULL);
        char *p = pmalloc_reserve(&op[i], SIZE, 0, PMALLOC_PINNED);
        CHECK(p && !bit_of(p));
        pm_free(pinned(SIZE));
    }
    pmalloc_cancel(op, 50);
    CHECK_EQ(pmalloc_publish(op + 50, 25), 0);
    verify();
    die();
}

static void test_kills(void) {
    CHECK_EQ(in_child(reserve_and_die), 128 + SIGKILL);
    expected = 125;
    CHECK_EQ(in_child(look), 0);
}

// A child has the caches that its thread had, and those of no other.
static void fork_and_go_on(void) {
    begin();
    for (unsigned i = 0; i < 100; i++)
        MUST(pinned(SIZE) != NULL);
    pid_t child = fork();
    for (unsigned i = 0; i < 200; i++) {
        void *p = pinned(SIZE);
        MUST(p != NULL);
        memset(p, child ? 'p' : 'c', SIZE);
    }
    if (!child)
        _exit(check_failures != 0);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    verify();
    die();
}

static void test_forks(void) {
    CHECK_EQ(in_child(fork_and_go_on), 128 + SIGKILL);
    expected = 300;
    CHECK_EQ(in_child(look), 0);
}

// ---- misuse -------------------------------------------------------------------------------------

static void free_twice(void) {
    begin();
    void *p = pinned(SIZE);
    pm_free(p);
    pm_free(p);
}

static void free_inside(void) {
    begin();
    pm_free((char *)pinned(SIZE) + 16);
}

static void test_misuse(void) {
    CHECK_EQ(in_child(free_twice), 128 + SIGABRT);
    CHECK_EQ(in_child(free_inside), 128 + SIGABRT);
}

int main(void) {
    RUN_CHILD(stripes_in_turn);
    RUN_CHILD(freed_blocks_wait);
    RUN_CHILD(caches_survive);
    RUN_CHILD(kinds_stay_apart);
    RUN_CHILD(sizes);
    RUN_CHILD(trim_returns);
    RUN_CHILD(threads);
    RUN_CHILD(kills);
    RUN_CHILD(forks);
    RUN_CHILD(misuse);
    return CHECK_DONE();
}

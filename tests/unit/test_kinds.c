// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Blocks of kinds: what recovery keeps of them and through them, and what the media say.
#include <pthread.h>

#include "base/crc.h"
#include "blocks/alloc.h"
#include "blocks/verify.h"
#include "media/feature.h"
#include "pages/extent_entry.h"
#include "session.h"

#define BLOCKS 60u

static void begin(void) {
    settings();
    pm_process_before_main();
}

// From 16 bytes to 300 KB.
static size_t size_of(unsigned i) { return i < 40 ? 16 + i * i * 9 : (size_t)(i - 39) * 14500; }

static bool is_pointer_free(unsigned i) { return i % 2; }

static int count_walked(void *p, size_t size, unsigned flags, void *arg) {
    uint64_t *count = arg;
    CHECK(size == pm_usable_size(p) && (flags & ~PMALLOC_POINTER_FREE) == 0);
    count[flags == PMALLOC_POINTER_FREE]++;
    count[2] += size;
    return 0;
}

// Each block of the table is full of addresses of a block that nothing else reaches.
static void fill_blocks(void) {
    begin();
    uint64_t **table = pm_calloc(BLOCKS, sizeof *table);
    for (unsigned i = 0; i < BLOCKS; i++) {
        unsigned flags = is_pointer_free(i) ? PMALLOC_POINTER_FREE : 0;
        uint64_t target = (uint64_t)(uintptr_t)pm_malloc(i % 3 ? 48 : 20000);
        table[i] = pmalloc_alloc(size_of(i), i % 5 ? 0 : 64, flags);
        MUST(table[i] && target);
        CHECK(i % 5 || (uintptr_t)table[i] % 64 == 0);
        for (size_t w = 0; w < size_of(i) / 8; w++)
            table[i][w] = target;
        CHECK(pmalloc_alloc(size_of(i), 0, PMALLOC_POINTER_FREE) != NULL); // garbage
    }
    CHECK((pm_heap.super->super.incompat & PM_INCOMPAT_KINDS) != 0);
    CHECK_EQ(pmalloc_set_root(0, table), 0);
    verify();
    die();
}

static void check_blocks(void) {
    begin();
    uint64_t **table = pmalloc_get_root(0), count[3] = {0};
    MUST(table != NULL);
    for (unsigned i = 0; i < BLOCKS; i++) {
        uint64_t target = table[i][0];
        for (size_t w = 0; w < size_of(i) / 8; w++)
            MUST(table[i][w] == target);
        bool kept = pm_find_tag((void *)(uintptr_t)target) != PM_TAG_NONE;
        CHECK_EQ(kept, !is_pointer_free(i));
    }
    CHECK_EQ(pmalloc_walk(count_walked, count), 0);
    CHECK_EQ(count[1], BLOCKS / 2);
    CHECK_EQ(count[0], BLOCKS + 1);
    CHECK_EQ(pm_process_recovery()->live_objects, BLOCKS * 3 / 2 + 1);
    verify();
}

static void close_them(void) {
    check_blocks();
    pm_process_end();
}

static void kill_them(void) {
    check_blocks();
    die();
}

static void test_recovery(void) {
    CHECK_EQ(in_child(fill_blocks), 128 + SIGKILL);
    CHECK_EQ(in_child(kill_them), 128 + SIGKILL);
    CHECK_EQ(in_child(close_them), 0);
    setenv("PMALLOC_MARKERS", "3", 1);
    CHECK_EQ(in_child(close_them), 0);
}

// A heap whose collection is left to a later start keeps blocks and kinds all the same.
static void keep_and_die(void) {
    setenv("PMALLOC_COLLECT", "later", 1);
    begin();
    uint64_t count[3] = {0};
    CHECK(pm_process_recovery()->uncollected);
    CHECK_EQ(pmalloc_walk(count_walked, count), 0);
    CHECK(count[1] >= BLOCKS);
    for (unsigned i = 0; i < 100; i++)
        CHECK(pmalloc_alloc(200, 0, PMALLOC_POINTER_FREE) != NULL);
    verify();
    die();
}

static void test_kept(void) {
    CHECK_EQ(in_child(fill_blocks), 128 + SIGKILL);
    CHECK_EQ(in_child(keep_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(kill_them), 128 + SIGKILL);
}

// A block moves with its kind, at any size.
static void test_realloc(void) {
    begin();
    size_t size = 16;
    char *p = pmalloc_alloc(size, 0, PMALLOC_POINTER_FREE | PMALLOC_ZERO);
    for (unsigned i = 0; i < 16; i++)
        CHECK_EQ(p[i], 0);
    memset(p, 'a', size);
    for (; size < 2000000; size *= 3) {
        p = pm_realloc(p, size * 3);
        MUST(p != NULL);
        CHECK(p[0] == 'a' && p[size - 1] == 'a' && pm_usable_size(p) >= size * 3);
        CHECK_EQ(pm_find(p).kind, PM_KIND_POINTER_FREE);
        memset(p, 'a', size * 3);
    }
    p = pm_realloc(p, 40);
    CHECK(p && p[39] == 'a' && pm_find(p).kind == PM_KIND_POINTER_FREE);
    CHECK(pm_realloc(p, 39) == p);
    pm_free(p);
    CHECK_EQ(pm_find(pm_malloc(40)).kind, PM_KIND_CONSERVATIVE);
    verify();
}

static void test_realloc_at(void) {
    begin();
    char **at = pm_calloc(1, sizeof *at);
    pmalloc_op op[2];
    char *p = pmalloc_reserve(&op[0], 100, 0, PMALLOC_POINTER_FREE);
    memset(p, 'b', 100);
    CHECK_EQ(pmalloc_store(&op[1], at, (uintptr_t)p), 0);
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    p = pmalloc_realloc_at(at, 30000);
    CHECK(p == *at && p[99] == 'b' && pm_find(p).kind == PM_KIND_POINTER_FREE);
    CHECK(pmalloc_free_from(at) == 0 && !*at);
    verify();
}

// Free blocks of one kind never serve the other.
static void churn(uint64_t **at, unsigned n, unsigned rounds) {
    for (unsigned i = 0; i < rounds; i++) {
        unsigned k = (unsigned)rnd(n);
        if (at[k]) {
            uint64_t words = at[k][0] >> 1;
            for (uint64_t w = 0; w < words; w += 7)
                MUST(at[k][w] == at[k][0]);
            CHECK_EQ(pm_find(at[k]).kind, at[k][0] & 1);
            pm_free(at[k]);
        }
        uint64_t words = 1 + rnd(rnd(20) ? 60 : 5000), kind = rnd(2);
        at[k] = pmalloc_alloc(words * 8, 0, kind ? PMALLOC_POINTER_FREE : 0);
        MUST(at[k] != NULL);
        for (uint64_t w = 0; w < words; w++)
            at[k][w] = words << 1 | kind;
    }
}

static void churn_and_die(void) {
    begin();
    uint64_t **table = pmalloc_get_root(0);
    static uint64_t round;
    fixture_seed += 7919 * ++round * (uint64_t)getpid();
    if (!table) {
        table = pm_calloc(3000, sizeof *table);
        MUST(pmalloc_set_root(0, table) == 0);
    }
    churn(table, 3000, 20000);
    for (unsigned i = 0; i < 3000; i++) // sparse slabs, which morph
        if (rnd(8)) {
            pm_free(table[i]);
            table[i] = NULL;
        }
    churn(table, 600, 4000);
    verify();
    die();
}

static void test_churn(void) {
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(in_child(churn_and_die), 128 + SIGKILL);
}

// Threads free what others have allocated.
static _Atomic(uint64_t *) shared[64];

static void *worker(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (unsigned i = 0; i < 20000; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t kind = state >> 33 & 1, size = 16 + (state >> 40) % (state >> 60 ? 400 : 30000);
        uint64_t *p = pmalloc_alloc(size, 0, kind ? PMALLOC_POINTER_FREE : 0);
        MUST(p != NULL);
        p[0] = p[1] = kind;
        p = atomic_exchange(&shared[state >> 50 & 63], p);
        if (p) {
            MUST(p[0] == p[1] && pm_find(p).kind == p[0]);
            pm_free(p);
        }
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t thread[4];
    begin();
    for (uintptr_t i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, worker, (void *)(i * 77 + 5)) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < 64; i++)
        pm_free(shared[i]);
    uint64_t count[3] = {0};
    CHECK_EQ(pmalloc_walk(count_walked, count), 0);
    CHECK_EQ(count[1], 0);
    verify();
}

// ---- what is refused ----------------------------------------------------------------------------

static void free_twice(void) {
    begin();
    void *p = pmalloc_alloc(100, 0, PMALLOC_POINTER_FREE);
    (void)!pmalloc_alloc(100, 0, PMALLOC_POINTER_FREE);
    pm_free(p);
    pm_free(p);
}

static void free_large_twice(void) {
    begin();
    void *p = pmalloc_alloc(100000, 0, PMALLOC_POINTER_FREE);
    pm_free(p);
    pm_free(p);
}

static void free_inside(void) {
    begin();
    char *p = pmalloc_alloc(1000, 0, PMALLOC_POINTER_FREE);
    pm_free(p + 512);
}

static void test_misuse(void) {
    begin();
    errno = 0;
    CHECK(!pmalloc_alloc(8, 0, 0x40) && errno == EINVAL);
    errno = 0;
    CHECK(!pmalloc_alloc(8, 24, PMALLOC_POINTER_FREE) && errno == EINVAL);
    errno = 0;
    CHECK(!pmalloc_alloc(SIZE_MAX / 2, 0, PMALLOC_POINTER_FREE) && errno == ENOMEM);
    errno = 0;
    CHECK(!pmalloc_alloc((PM_KIND_PAGES_MAX + 1) << 12, 0, PMALLOC_POINTER_FREE) &&
          errno == ENOMEM);
}

static void test_misuse_aborts(void) {
    CHECK_EQ(in_child(free_twice), 128 + SIGABRT);
    CHECK_EQ(in_child(free_large_twice), 128 + SIGABRT);
    CHECK_EQ(in_child(free_inside), 128 + SIGABRT);
}

// A header or an entry of a kind that the heap cannot have: nothing is changed.
static struct pm_slab_header *header_of(const void *p) {
    return (struct pm_slab_header *)pm_heap.shard[0].slabs.map + pm_slab_of(p);
}

static bool unknown; // else known, in a heap without the feature

static void forge_kind(void) {
    begin();
    void *p = unknown ? pmalloc_alloc(100, 0, PMALLOC_POINTER_FREE) : pm_malloc(100);
    MUST(pmalloc_set_root(0, p) == 0);
    struct pm_slab_header *h = header_of(p);
    h->kind = unknown ? 7 : PM_KIND_POINTER_FREE;
    h->crc = pm_slab_header_crc(pm_slab_of(p), h);
    die();
}

static void forge_entry(void) {
    begin();
    struct pm_shard *s = &pm_heap.shard[0];
    MUST(pmalloc_set_root(0, pm_malloc(100)) == 0);
    uint32_t index = pm_extent_take(8, 1);
    uint64_t entry = pm_entry_of(false, PM_KIND_POINTER_FREE, pm_extents[index].page, 8);
    if (unknown) {
        pm_feature_need(PM_INCOMPAT_KINDS);
        entry = pm_entry_of(false, (enum pm_kind)6, pm_extents[index].page, 8);
    }
    MUST(pm_log_append(s, entry, pm_extent_entry_moved) != PM_LOG_NOWHERE);
    die();
}

static void refuse(void) {
    settings();
    pm_process_start(); // ends the process
}

static void test_damage(void) {
    static void (*const all[])(void) = {forge_kind, forge_entry};
    for (unsigned i = 0; i < 4; i++) {
        unknown = i & 1;
        CHECK_EQ(in_child(all[i / 2]), 128 + SIGKILL);
        CHECK_EQ(in_child(refuse), 125);
        fixture_clear();
    }
}

int main(void) {
    RUN_CHILD(recovery);
    RUN_CHILD(kept);
    RUN_CHILD(realloc);
    RUN_CHILD(realloc_at);
    RUN_CHILD(churn);
    RUN_CHILD(threads);
    RUN_CHILD(misuse);
    RUN_CHILD(misuse_aborts);
    RUN_CHILD(damage);
    return CHECK_DONE();
}

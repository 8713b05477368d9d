// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Typed blocks: the type stays through kills, closes, realloc and reuse of memory; a walk beside
// threads that allocate sees each block that lives once.
#include <pthread.h>

#include "base/crc.h"
#include "blocks/alloc.h"
#include "blocks/types.h"
#include "blocks/verify.h"
#include "media/feature.h"
#include "pages/extent_entry.h"
#include "session.h"

static void begin(void) {
    settings();
    pm_process_before_main();
}

static uint64_t typed_slabs(void) {
    uint64_t count = 0;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        count += pm_extents[i].slab && pm_vslabs[pm_extent_slab(&pm_extents[i])].type;
    return count;
}

// ---- kills --------------------------------------------------------------------------------------

#define BLOCKS 96u

static size_t size_of(unsigned i) { return i % 8 ? 16 + i * i * 3 : 30000 + i * 1000; }

// 0 .. 5, and the largest.
static unsigned type_of(unsigned i) { return i % 7 == 6 ? PMALLOC_TYPES - 1 : i % 7; }

static unsigned flags_of(unsigned i) {
    return PMALLOC_TYPE(type_of(i)) | (i % 3 ? 0 : PMALLOC_POINTER_FREE) |
           (i % 4 ? 0 : PMALLOC_PINNED);
}

struct seen {
    uint64_t blocks, reached, wrong;
    unsigned type;
};

static int look(void *p, size_t size, unsigned flags, void *arg) {
    struct seen *s = arg;
    uint64_t **table = pmalloc_get_root(0);
    s->blocks++;
    CHECK_EQ(size, pm_usable_size(p));
    for (unsigned i = 0; i < BLOCKS; i++)
        if (table[i] == p) {
            s->reached++;
            s->wrong += flags != flags_of(i);
        }
    s->wrong += s->type != PMALLOC_TYPES && PMALLOC_TYPE_OF(flags) != s->type;
    return 0;
}

static void check_types(void) {
    uint64_t **table = pmalloc_get_root(0);
    MUST(table != NULL);
    struct seen all = {.type = PMALLOC_TYPES}, sum = {0};
    CHECK_EQ(pmalloc_walk(look, &all), 0);
    CHECK_EQ(all.reached, BLOCKS);
    CHECK_EQ(all.wrong, 0);
    for (unsigned t = 0; t < 7; t++) {
        struct seen one = {.type = type_of(t)};
        uint64_t want = 0;
        for (unsigned i = 0; i < BLOCKS; i++)
            want += type_of(i) == one.type;
        CHECK_EQ(pmalloc_walk_type(one.type, look, &one), 0);
        CHECK_EQ(one.reached, want);
        CHECK_EQ(one.wrong, 0);
        sum.blocks += one.blocks;
    }
    CHECK_EQ(sum.blocks, all.blocks);
    for (unsigned i = 0; i < BLOCKS; i++)
        for (size_t w = 0; w < size_of(i) / 8; w += 5)
            MUST(table[i][w] == i);
    verify();
}

static void fill_types(void) {
    begin();
    uint64_t **table = pm_calloc(BLOCKS, sizeof *table);
    for (unsigned i = 0; i < BLOCKS; i++) {
        table[i] = pmalloc_alloc(size_of(i), i % 5 ? 0 : 128, flags_of(i));
        MUST(table[i] != NULL);
        CHECK(i % 5 || (uintptr_t)table[i] % 128 == 0);
        for (size_t w = 0; w < size_of(i) / 8; w++)
            table[i][w] = i;
        CHECK(pmalloc_alloc(size_of(i), 0, PMALLOC_TYPE(type_of(i))) != NULL); // garbage
    }
    CHECK((pm_heap.super->super.incompat & PM_INCOMPAT_TYPES) != 0);
    CHECK_EQ(pmalloc_set_root(0, table), 0);
    check_types();
    die();
}

static void kill_them(void) {
    begin();
    check_types();
    CHECK_EQ(pm_process_recovery()->live_objects, BLOCKS + 1);
    for (unsigned i = 0; i < 3000; i++) // into the slabs that were found
        CHECK(pmalloc_alloc(64 + i % 200, 0, PMALLOC_TYPE(i % 6)) != NULL);
    check_types();
    die();
}

static void close_them(void) {
    begin();
    check_types();
    pm_process_end();
}

static void keep_and_die(void) {
    setenv("PMALLOC_COLLECT", "later", 1);
    begin();
    CHECK(pm_process_recovery()->uncollected);
    check_types();
    die();
}

// The old blocks are held until the collection; new ones come from new slabs.
static void hold_and_die(void) {
    setenv("PMALLOC_COLLECT", "api", 1);
    begin();
    check_types();
    void *fresh = pmalloc_alloc(100, 0, PMALLOC_TYPE(3));
    CHECK(pmalloc_set_root(1, fresh) == 0);
    CHECK_EQ(pmalloc_collect(), 0);
    CHECK_EQ(pm_find(fresh).type, 3);
    check_types();
    CHECK_EQ(pmalloc_set_root(1, NULL), 0);
    die();
}

static void test_recovery(void) {
    CHECK_EQ(in_child(fill_types), 128 + SIGKILL);
    CHECK_EQ(in_child(kill_them), 128 + SIGKILL);
    CHECK_EQ(in_child(keep_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(hold_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(close_them), 0);
    CHECK_EQ(in_child(kill_them), 128 + SIGKILL);
    setenv("PMALLOC_MARKERS", "3", 1);
    CHECK_EQ(in_child(close_them), 0);
    CHECK_EQ(in_child(close_them), 0);
}

// ---- realloc, reuse -----------------------------------------------------------------------------

static void test_realloc(void) {
    begin();
    size_t size = 16;
    char *p = pmalloc_alloc(size, 0, PMALLOC_TYPE(700) | PMALLOC_ZERO);
    for (; size < 2000000; size *= 3) {
        memset(p, 'a', size);
        p = pm_realloc(p, size * 3);
        MUST(p != NULL);
        CHECK(p[0] == 'a' && p[size - 1] == 'a');
        CHECK_EQ(pm_find(p).type, 700);
    }
    p = pm_realloc(p, 40);
    CHECK_EQ(pm_find(p).type, 700);
    pm_free(p);
    CHECK_EQ(pm_find(pm_malloc(40)).type, 0);

    char **at = pm_calloc(1, sizeof *at);
    pmalloc_op op[2];
    MUST(pmalloc_reserve(&op[0], 100, 0, PMALLOC_TYPE(9) | PMALLOC_PINNED));
    CHECK_EQ(pmalloc_store(&op[1], at, (uintptr_t)op[0].at), 0);
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    CHECK_EQ(pm_find(pmalloc_realloc_at(at, 30000)).type, 9);
    CHECK(pmalloc_free_from(at) == 0 && !*at);
    verify();
}

// A block of each of many types, freed and made again: no slab is made for it.
static void test_many_types(void) {
    begin();
    enum { TYPES = 3000 };
    for (unsigned t = 1; t <= TYPES; t++) {
        pm_free(pmalloc_alloc(40, 0, PMALLOC_TYPE(t)));
        if (t % 16) // stays
            MUST(pmalloc_alloc(40, 0, PMALLOC_TYPE(t)) != NULL);
    }
    uint64_t slabs = typed_slabs();
    CHECK(slabs >= TYPES - TYPES / 16);
    for (unsigned i = 0; i < 10 * TYPES; i++) {
        unsigned type = 1 + i % TYPES;
        if (type % 16 == 0)
            continue;
        void *p = pmalloc_alloc(40, 0, PMALLOC_TYPE(type));
        CHECK_EQ(pm_find(p).type, type);
        pm_free(p);
    }
    CHECK_EQ(typed_slabs(), slabs);
    struct seen one = {.type = 1617};
    MUST(pmalloc_set_root(0, pm_calloc(BLOCKS, 8)) == 0);
    CHECK_EQ(pmalloc_walk_type(1617, look, &one), 0);
    CHECK(one.blocks == 1 && one.wrong == 0);
    verify();
}

// An empty slab of a type serves that type again, and goes if it does not.
static void test_empty_slabs(void) {
    setenv("PMALLOC_DECAY_MS", "0", 1);
    begin();
    void *p[64];
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 64; i++)
            p[i] = pmalloc_alloc(8192, 0, PMALLOC_TYPE(1 + i % 2));
        for (unsigned i = 0; i < 64; i++)
            pm_free(p[i]);
    }
    CHECK(typed_slabs() <= 8);
    verify();
    pm_trim();
    CHECK_EQ(typed_slabs(), 0);
    verify();
}

static void churn(uint64_t **at, unsigned n, unsigned rounds) {
    for (unsigned i = 0; i < rounds; i++) {
        unsigned k = (unsigned)rnd(n);
        if (at[k]) {
            uint64_t words = at[k][0] >> 20;
            for (uint64_t w = 0; w < words; w += 7)
                MUST(at[k][w] == at[k][0]);
            CHECK_EQ(pm_find(at[k]).type, at[k][0] & 0xffff);
            pm_free(at[k]);
        }
        uint64_t words = 1 + rnd(rnd(20) ? 60 : 5000), type = rnd(2) ? 0 : 1 + rnd(12) * 1024;
        at[k] =
            pmalloc_alloc(words * 8, 0, PMALLOC_TYPE(type) | (rnd(2) ? PMALLOC_POINTER_FREE : 0));
        MUST(at[k] != NULL);
        for (uint64_t w = 0; w < words; w++)
            at[k][w] = words << 20 | type;
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
    for (unsigned i = 0; i < 3000; i++) // sparse slabs, which would morph
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

// ---- a walk beside threads ----------------------------------------------------------------------

#define KEPT 4000u
#define WALKS 30u

static _Atomic bool over;
static uint32_t *kept[KEPT];
static _Atomic uint64_t busy;

// Blocks of all sizes, in slabs that morph, with types and without.
static void *allocate_and_free(void *seed) {
    static const size_t sizes[] = {24, 100, 600, 3000, 9000, 20000, 70000, 300000};
    uint64_t state = (uint64_t)(uintptr_t)seed * 2654435761u;
    void *own[400] = {0};
    while (!atomic_load(&over)) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        unsigned k = (unsigned)(state >> 40) % 400;
        size_t size = 1 + (state >> 20) % sizes[state >> 61];
        pm_free(own[k]);
        own[k] = state >> 33 & 3 ? pm_malloc(size)
                                 : pmalloc_alloc(size, 0, PMALLOC_TYPE(state >> 35 & 3));
        MUST(own[k] != NULL);
        if ((state >> 50) % 64 == 0)
            pm_trim();
        atomic_fetch_add_explicit(&busy, 1, memory_order_relaxed);
    }
    for (unsigned k = 0; k < 400; k++)
        pm_free(own[k]);
    return NULL;
}

static _Thread_local uint8_t *times;

static int by_address(const void *a, const void *b) {
    const uint32_t *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

static int count_kept(void *p, size_t size, unsigned flags, void *arg) {
    uint64_t *last = arg;
    uint32_t **at = bsearch(&p, kept, KEPT, sizeof *kept, by_address);
    CHECK((uintptr_t)p > *last); // by rising address, so none comes twice
    *last = (uintptr_t)p;
    if (!at)
        return 0;
    times[at - kept]++;
    CHECK(size >= **at && PMALLOC_TYPE_OF(flags) == **at % 5);
    return 0;
}

static void test_walk_beside_threads(void) {
    static uint8_t counts[KEPT];
    pthread_t thread[3];
    begin();
    for (unsigned i = 0; i < KEPT; i++) {
        uint32_t size = 8 + (uint32_t)rnd(i % 50 ? 2000 : 150000);
        kept[i] = pmalloc_alloc(size, 0, PMALLOC_TYPE(size % 5));
        MUST(kept[i] != NULL);
        *kept[i] = size;
        if (i % 3)
            pm_free(pm_malloc(rnd(i % 50 ? 2000 : 150000)));
    }
    qsort(kept, KEPT, sizeof *kept, by_address);
    for (uintptr_t i = 0; i < 3; i++)
        MUST(pthread_create(&thread[i], NULL, allocate_and_free, (void *)(i + 1)) == 0);
    times = counts;
    for (unsigned walk = 0; walk < WALKS; walk++) {
        uint64_t before = atomic_load(&busy), last = 0;
        while (atomic_load(&busy) < before + 300)
            sched_yield();
        memset(counts, 0, sizeof counts);
        CHECK_EQ(pmalloc_walk(count_kept, &last), 0);
        for (unsigned i = 0; i < KEPT; i++)
            CHECK_EQ(counts[i], 1);
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    verify();
}

// `fn` holds no lock: it frees its block and allocates another one.
static int replace(void *p, size_t size, unsigned flags, void *arg) {
    unsigned *left = arg;
    pm_free(p);
    MUST(pmalloc_alloc(size, 0, flags) != NULL);
    return --*left == 0 ? 17 : 0;
}

static void test_walk_that_frees(void) {
    begin();
    unsigned left = 500;
    for (unsigned i = 0; i < 600; i++)
        MUST(pmalloc_alloc(16 + i * 40, 0, PMALLOC_TYPE(i % 3)) != NULL);
    CHECK_EQ(pmalloc_walk(replace, &left), 17);
    errno = 0;
    CHECK(pmalloc_walk_type(PMALLOC_TYPES, replace, &left) == -1 && errno == EINVAL);
    verify();
}

// A block that is younger than the walk and covers the place that it has come to is not seen: it
// begins before that place.
#define PIECE ((size_t)256 << 10)
static char *piece[3], *longer;
static uintptr_t seen_last;

static int put_one_over_it(void *p, size_t size, unsigned flags, void *unused) {
    (void)size, (void)flags, (void)unused;
    CHECK((uintptr_t)p > seen_last && p != longer);
    seen_last = (uintptr_t)p;
    if (p != piece[1])
        return 0;
    pm_free(piece[0]);
    pm_free(piece[1]);
    pm_trim();
    longer = pm_malloc(3 * PIECE);
    CHECK(longer == piece[0]);
    return 0;
}

static void test_walk_that_is_overtaken(void) {
    begin();
    for (unsigned i = 0; i < 3; i++)
        MUST((piece[i] = pm_malloc(PIECE)) && (!i || piece[i] == piece[i - 1] + PIECE));
    MUST(pm_malloc(PIECE) != NULL);
    pm_free(piece[2]);
    pm_trim();
    CHECK_EQ(pmalloc_walk(put_one_over_it, NULL), 0);
    CHECK(longer && seen_last > (uintptr_t)longer + 2 * PIECE);
    verify();
}

// ---- damage -------------------------------------------------------------------------------------

static unsigned forged;

static void forge(void) {
    begin();
    bool large = forged >= 4;
    size_t size = large ? 100000 : 100;
    void *p = forged % 4 == 3 ? pmalloc_alloc(size, 0, PMALLOC_PINNED)
                              : pmalloc_alloc(size, 0, PMALLOC_TYPE(5));
    MUST(pmalloc_set_root(0, p) == 0);
    uint32_t slab = pm_slab_of(p);
    struct pm_slab_header *h = (struct pm_slab_header *)pm_heap.shard[0].slabs.map + slab;
    CHECK_EQ(h->type, forged % 4 == 3 ? 0 : 5);
    switch (forged % 4) {
    case 0: // of no type
        h->type = 0;
        break;
    case 1: // the heap has no typed blocks
        pm_heap.super->super.incompat &= ~PM_INCOMPAT_TYPES;
        pm_feature_set(0);
        die();
        break;
    case 2: // the check
        h->type = 6;
        die();
        break;
    default: // of a type, but of another kind
        h->type = 9;
    }
    h->crc = pm_slab_header_crc(slab, h);
    die();
}

static void refuse(void) {
    settings();
    pm_process_start(); // ends the process
}

static void test_damage(void) {
    for (forged = 0; forged < 8; forged++) {
        CHECK_EQ(in_child(forge), 128 + SIGKILL);
        CHECK_EQ(in_child(refuse), 125);
        fixture_drop();
        fixture_make();
    }
}

int main(void) {
    RUN_CHILD(recovery);
    RUN_CHILD(realloc);
    RUN_CHILD(many_types);
    RUN_CHILD(empty_slabs);
    RUN_CHILD(churn);
    RUN_CHILD(walk_beside_threads);
    RUN_CHILD(walk_that_frees);
    RUN_CHILD(walk_that_is_overtaken);
    RUN_CHILD(damage);
    return CHECK_DONE();
}

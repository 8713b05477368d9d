// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Pinned blocks: alive whatever reaches them, until they are freed; a reserved one is free until it
// is published.
#include <pthread.h>

#include "base/bits.h"
#include "base/crc.h"
#include "blocks/alloc.h"
#include "blocks/pinned.h"
#include "blocks/verify.h"
#include "media/pinned.h"
#include "pages/extent_entry.h"
#include "session.h"

static void begin(void) {
    settings();
    pm_process_before_main();
}

// What a child tells the next: it has no roots to keep it in.
static struct {
    uint64_t count;
    char *at[4096];
    size_t size[4096];
    char *seen;
} * told;

static void note(char *p, size_t size) {
    told->at[told->count] = p;
    told->size[told->count++] = size;
}

static uint64_t walked, walked_plain;

static int count_walked(void *p, size_t size, unsigned flags, void *arg) {
    (void)arg;
    CHECK_EQ(size, pm_usable_size(p));
    walked += (flags & PMALLOC_PINNED) != 0;
    walked_plain += !(flags & PMALLOC_PINNED);
    return 0;
}

static void check_walked(uint64_t pinned, uint64_t plain) {
    walked = walked_plain = 0;
    CHECK_EQ(pmalloc_walk(count_walked, NULL), 0);
    CHECK_EQ(walked, pinned);
    CHECK_EQ(walked_plain, plain);
}

// ---- alive without a root -----------------------------------------------------------------------

static size_t size_of(unsigned i) { return i < 300 ? 16 + i * i / 6 : (size_t)(i - 299) * 9500; }

// Every third is freed again.
static void fill(void) {
    begin();
    for (unsigned i = 0; i < 330; i++) {
        unsigned flags = PMALLOC_PINNED | (i % 4 ? 0 : PMALLOC_POINTER_FREE);
        char *p = pmalloc_alloc(size_of(i), i % 7 ? 0 : 128, flags), *more;
        MUST(p != NULL);
        memset(p, (int)i, size_of(i));
        more = pmalloc_alloc(size_of(i), 0, PMALLOC_PINNED | PMALLOC_ZERO);
        MUST(more && more[0] == 0 && more[size_of(i) - 1] == 0);
        CHECK(pm_find(more).kind == PM_KIND_PINNED);
        if (i % 3)
            pm_free(more);
        else
            note(more, size_of(i));
        note(p, size_of(i));
        CHECK(pm_malloc(size_of(i)) != NULL); // garbage
        pmalloc_op op;
        CHECK(pmalloc_reserve(&op, size_of(i), 0, flags) != NULL); // is forgotten
    }
    CHECK((pm_heap.super->super.incompat & PM_INCOMPAT_PINNED) != 0);
    verify();
    die();
}

static void look(void) {
    begin();
    for (uint64_t i = 0; i < told->count; i++) {
        CHECK(pm_usable_size(told->at[i]) >= told->size[i]);
        CHECK(told->at[i][0] == told->at[i][told->size[i] - 1]);
    }
    check_walked(told->count, 0);
    CHECK_EQ(pm_process_recovery()->live_objects, told->count);
    CHECK_EQ(pm_process_recovery()->roots, 0);
    verify();
}

static void look_and_close(void) {
    look();
    pm_process_end();
}

static void look_and_free(void) {
    look();
    for (uint64_t i = 0; i < told->count; i++)
        pm_free(told->at[i]);
    check_walked(0, 0);
    verify();
    told->count = 0;
    die();
}

static void test_recovery(void) {
    told->count = 0;
    CHECK_EQ(in_child(fill), 128 + SIGKILL);
    CHECK_EQ(in_child(look_and_close), 0);
    setenv("PMALLOC_COLLECT", "crash", 1);
    CHECK_EQ(in_child(look_and_close), 0);
    setenv("PMALLOC_MARKERS", "3", 1);
    CHECK_EQ(in_child(look_and_free), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

// A start that collects nothing knows them all the same.
static void look_at_kept(void) {
    begin();
    CHECK(pm_process_recovery()->uncollected);
    walked = walked_plain = 0;
    CHECK_EQ(pmalloc_walk(count_walked, NULL), 0);
    CHECK(walked == told->count && walked_plain >= 330);
    verify();
    die();
}

static void collect_now(void) {
    begin();
    CHECK_EQ(pmalloc_collect(), 0);
    check_walked(told->count, 0);
    for (uint64_t i = 0; i < told->count; i++)
        CHECK(pm_usable_size(told->at[i]) >= told->size[i]);
    verify();
    die();
}

static void test_kept(void) {
    told->count = 0;
    CHECK_EQ(in_child(fill), 128 + SIGKILL);
    setenv("PMALLOC_COLLECT", "later", 1);
    CHECK_EQ(in_child(look_at_kept), 128 + SIGKILL);
    setenv("PMALLOC_COLLECT", "api", 1);
    CHECK_EQ(in_child(collect_now), 128 + SIGKILL);
    unsetenv("PMALLOC_COLLECT");
    CHECK_EQ(in_child(look), 0);
}

// ---- what they point to -------------------------------------------------------------------------

static void point(void) {
    begin();
    for (unsigned i = 0; i < 40; i++) {
        unsigned flags = PMALLOC_PINNED | (i % 2 ? PMALLOC_POINTER_FREE : 0);
        char **p = pmalloc_alloc(i < 20 ? 100 : 100000, 0, flags);
        MUST(p != NULL);
        p[5] = pm_malloc(i % 3 ? 48 : 30000);
        note((char *)p, 100);
    }
    char **gone = pmalloc_alloc(100, 0, PMALLOC_PINNED);
    MUST(gone != NULL);
    gone[0] = pm_malloc(48);
    pm_free(gone);
    die();
}

static void look_behind(void) {
    begin();
    for (unsigned i = 0; i < 40; i++) {
        const char *behind = ((char **)(void *)told->at[i])[5];
        CHECK_EQ(pm_find_tag(behind) != PM_TAG_NONE, i % 2 == 0);
    }
    check_walked(40, 20);
    verify();
    die();
}

static void test_what_they_point_to(void) {
    told->count = 0;
    CHECK_EQ(in_child(point), 128 + SIGKILL);
    CHECK_EQ(in_child(look_behind), 128 + SIGKILL);
    setenv("PMALLOC_MARKERS", "4", 1);
    CHECK_EQ(in_child(look_behind), 128 + SIGKILL);
}

// ---- publish ------------------------------------------------------------------------------------

static void publish_some(void) {
    begin();
    pmalloc_op op[6] = {0};
    char *small = pmalloc_reserve(&op[0], 70, 0, PMALLOC_PINNED);
    char *large = pmalloc_reserve(&op[1], 70000, 0, PMALLOC_PINNED | PMALLOC_POINTER_FREE);
    MUST(small && large);
    memset(small, 'p', 70);
    memset(large, 'p', 70000);
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    note(small, 70);
    note(large, 70000);

    char *old = pmalloc_alloc(70, 0, PMALLOC_PINNED), *next = pmalloc_reserve(&op[0], 90, 0, 8);
    memset(next, 'n', 90);
    pmalloc_defer_free(&op[1], old); // it takes its place
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    note(next, 90);
    old = pmalloc_alloc(90000, 0, PMALLOC_PINNED);
    pmalloc_defer_free(&op[0], old);
    CHECK_EQ(pmalloc_publish(op, 1), 0);

    (void)!pmalloc_reserve(&op[0], 500, 0, PMALLOC_PINNED);
    (void)!pmalloc_reserve(&op[1], 50000, 0, PMALLOC_PINNED);
    pmalloc_cancel(op, 2);
    (void)!pmalloc_reserve(&op[0], 500, 0, PMALLOC_PINNED);
    (void)!pmalloc_reserve(&op[1], 50000, 0, PMALLOC_PINNED);
    verify();
    die(); // both are forgotten
}

static void test_publish(void) {
    told->count = 0;
    CHECK_EQ(in_child(publish_some), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

static void too_many(void) {
    begin();
    static pmalloc_op op[PMALLOC_PUBLISH_STORES + 1];
    for (unsigned i = 0; i <= PMALLOC_PUBLISH_STORES; i++)
        MUST(pmalloc_reserve(&op[i], 40, 0, PMALLOC_PINNED) != NULL);
    errno = 0;
    CHECK(pmalloc_publish(op, PMALLOC_PUBLISH_STORES + 1) == -1 && errno == EINVAL);
    for (unsigned i = 0; i < PMALLOC_PUBLISH_STORES; i++)
        note(op[i].at, 40);
    CHECK_EQ(pmalloc_publish(op, PMALLOC_PUBLISH_STORES), 0);
    die();
}

static void test_too_many(void) {
    told->count = 0;
    CHECK_EQ(in_child(too_many), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

// ---- realloc ------------------------------------------------------------------------------------

static void reallocate(void) {
    begin();
    char *p = pmalloc_alloc(16, 0, PMALLOC_PINNED | PMALLOC_POINTER_FREE);
    memset(p, 'a', 16);
    for (size_t size = 16; size < 500000; size *= 3) {
        p = pm_realloc(p, size * 3);
        MUST(p && p[0] == 'a' && p[size - 1] == 'a');
        CHECK_EQ(pm_find(p).kind, PM_KIND_PINNED_POINTER_FREE);
        memset(p, 'a', size * 3);
    }
    char **at = pm_calloc(1, sizeof *at);
    MUST(pmalloc_set_root(0, at) == 0);
    *at = pmalloc_alloc(100, 0, PMALLOC_PINNED);
    CHECK(pmalloc_realloc_at(at, 30000) == *at);
    CHECK_EQ(pm_find(*at).kind, PM_KIND_PINNED);
    note(p, 100);
    verify();
    die();
}

static void look_at_reallocated(void) {
    begin();
    CHECK_EQ(pm_find(told->at[0]).kind, PM_KIND_PINNED_POINTER_FREE);
    check_walked(2, 1);
    verify();
}

static void test_realloc(void) {
    told->count = 0;
    CHECK_EQ(in_child(reallocate), 128 + SIGKILL);
    CHECK_EQ(in_child(look_at_reallocated), 0);
}

// ---- many, and threads --------------------------------------------------------------------------

static _Atomic(uint64_t *) shared[64];

static void *worker(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (unsigned i = 0; i < 8000; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t size = 16 + (state >> 40) % (state >> 60 ? 400 : 30000);
        pmalloc_op op[2] = {0};
        uint64_t *p = state >> 35 & 1 ? pmalloc_alloc(size, 0, PMALLOC_PINNED)
                                      : pmalloc_reserve(&op[0], size, 0, PMALLOC_PINNED);
        MUST(p != NULL);
        p[0] = size;
        uint64_t *old = atomic_exchange(&shared[state >> 50 & 63], NULL);
        if (state >> 36 & 1)
            pmalloc_defer_free(&op[1], old);
        else
            pm_free(old);
        CHECK_EQ(pmalloc_publish(op, 2), 0);
        pm_free(atomic_exchange(&shared[state >> 44 & 63], p));
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t thread[4];
    begin();
    for (uintptr_t i = 0; i < 4; i++)
        MUST(pthread_create(&thread[i], NULL, worker, (void *)(i * 77 + 5)) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < 64; i++)
        if (shared[i])
            note((char *)shared[i], 0);
    for (uint64_t i = 0; i < told->count; i++)
        memset(told->at[i], 0, told->size[i] = pm_usable_size(told->at[i]));
    verify();
    die();
}

static void test_threads(void) {
    told->count = 0;
    CHECK_EQ(in_child(run_threads), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 0);
}

// Neighbours in time are in different lines of media.
static void test_stripes(void) {
    static const size_t sizes[] = {16, 48, 64, 200, 1000, 5000};
    begin();
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t line[6] = {0}, again = 0;
        for (unsigned i = 0; i < 600; i++) {
            void *p = pmalloc_alloc(sizes[s], 0, PMALLOC_PINNED);
            uint64_t now = pm_pin_of(p).place >> 6;
            for (unsigned k = 1; k < 6; k++)
                again += line[(i - k) % 6] == now;
            line[i % 6] = now;
        }
        CHECK(again <= 600 / pm_classes[pm_size_to_class(sizes[s])].blocks * 5);
    }
    verify();
}

// ---- damage -------------------------------------------------------------------------------------

static unsigned which;

static void leave_damaged(void) {
    begin();
    char *small = pmalloc_alloc(5000, 0, PMALLOC_PINNED);
    char *large = pmalloc_alloc(50000, 0, PMALLOC_PINNED);
    MUST(small && large);
    const struct pm_shard *s = &pm_heap.shard[0];
    uint32_t line = pm_vslabs[pm_slab_of(small)].media_line;
    struct pm_pinned_table *t = (void *)(s->morph.map + line * 64ull);
    struct pm_slab_header *h = (struct pm_slab_header *)(void *)s->slabs.map + pm_slab_of(large);
    switch (which) {
    case 0:
        *pm_pin_word(pm_pin_of(small).place) ^= 1ull << 40;
        break;
    case 1: // a block that the slab does not have
        pm_pin_write(pm_pin_of(small).place, 1u << 31);
        break;
    case 2:
        t->blocks++;
        break;
    case 3:
        memset(t, 0, sizeof *t);
        break;
    case 4:
        h->crc++;
        break;
    case 5:
        pm_pin_write(pm_pin_of(large).place, 2);
        break;
    case 6: // the file is too short
        MUST(ftruncate(s->morph.fd, 4096) == 0);
        MUST(line * 64 < 4096);
        pm_slab_commit_class(pm_slab_of(small), pm_vslabs[pm_slab_of(small)].size_class, 63);
        break;
    default: // no table at all
        pm_slab_commit_class(pm_slab_of(small), pm_vslabs[pm_slab_of(small)].size_class, 0);
    }
    die();
}

static void refuse(void) {
    settings();
    pm_process_start(); // ends the process
}

static void test_damage(void) {
    for (which = 0; which < 8; which++) {
        CHECK_EQ(in_child(leave_damaged), 128 + SIGKILL);
        CHECK_EQ(in_child(refuse), 125);
        fixture_clear();
    }
}

static void free_twice(void) {
    begin();
    void *p = pmalloc_alloc(100, 0, PMALLOC_PINNED);
    (void)!pmalloc_alloc(100, 0, PMALLOC_PINNED);
    pm_free(p);
    pm_free(p);
}

static void test_misuse(void) { CHECK_EQ(in_child(free_twice), 128 + SIGABRT); }

static void test_volatile(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_process_before_main();
    char *p = pmalloc_alloc(100, 0, PMALLOC_PINNED | PMALLOC_ZERO);
    pmalloc_op op;
    CHECK(p && p[99] == 0 && pmalloc_reserve(&op, 100000, 0, PMALLOC_PINNED));
    CHECK_EQ(pmalloc_publish(&op, 1), 0);
    pm_free(pm_realloc(p, 5000));
}

int main(void) {
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RUN_CHILD(recovery);
    RUN_CHILD(kept);
    RUN_CHILD(what_they_point_to);
    RUN_CHILD(publish);
    RUN_CHILD(too_many);
    RUN_CHILD(realloc);
    RUN_CHILD(threads);
    RUN_CHILD(stripes);
    RUN_CHILD(damage);
    RUN_CHILD(misuse);
    RUN_CHILD(volatile);
    return CHECK_DONE();
}

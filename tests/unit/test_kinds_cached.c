// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Pointer-free blocks in thread caches: which stack has them, whose arenas their slabs are, what
// others take back, and that no block of malloc's ever comes from one of their slabs.
#include <pthread.h>

#include "blocks/alloc.h"
#include "blocks/kinds.h"
#include "blocks/population.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "session.h"

#define SIZE 64u
#define CLASS 4u
#define TAG (PM_TAG_POINTER_FREE + CLASS)

static void begin(void) {
    settings();
    pm_process_before_main();
}

static void *pointer_free(size_t size) { return pmalloc_alloc(size, 0, PMALLOC_POINTER_FREE); }

static struct pm_vslab *vslab_of(const void *p) { return &pm_vslabs[pm_slab_of(p)]; }

static unsigned cached(void) { return pm_stack_count(&pm_tcache->stack[TAG]); }

static void test_tags(void) {
    for (unsigned tag = 0; tag < PM_TAGS; tag++) {
        unsigned cls = pm_tag_class(tag);
        CHECK(cls <= PM_CLASSES && pm_tag_is_cached(tag) == (cls != 0));
        CHECK(tag == cls || !cls || tag == PM_TAG_POINTER_FREE + cls);
    }
    CHECK(!pm_tag_class(PM_TAG_NONE) && !pm_tag_class(PM_TAG_EXTENT) && !pm_tag_class(PM_TAG_KIND));
    CHECK_EQ(pm_tag_class(PM_TAGS - 1), PM_CLASSES);
}

// Before its first block without pointers a thread has no stack for them.
static void test_stacks_begin_late(void) {
    begin();
    CHECK(pm_malloc(SIZE) != NULL);
    CHECK_EQ(pm_tcache->stacks, PM_CLASSES + 1);
    CHECK(pm_tcache->stack[TAG].cap == 0 && !pm_tcache->slot[TAG]);
    char *p = pointer_free(SIZE), *q = pointer_free(SIZE);
    MUST(p && q);
    CHECK_EQ(pm_tcache->stacks, PM_TAGS);
    CHECK(*pm_tag_at(p) == TAG && pm_find(p).kind == PM_KIND_POINTER_FREE);
    CHECK(cached() > 0);
    pm_free(p);
    CHECK(*pm_tag_at(p) == PM_TAG_NONE && pointer_free(SIZE) == p);
    for (unsigned i = 0; i < 1000; i++) // malloc's come from elsewhere
        CHECK(vslab_of(pm_malloc(SIZE))->kind == PM_KIND_CONSERVATIVE);
    CHECK_EQ(vslab_of(q)->kind, PM_KIND_POINTER_FREE);
    verify();
}

// A stack grows as malloc's do, and all of it goes back at malloc_trim().
static void test_batches_return(void) {
    static void *held[20000];
    struct pm_stats s;
    begin();
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 20000; i++)
            MUST(held[i] = pointer_free(SIZE));
        for (unsigned i = 0; i < 20000; i++)
            pm_free(held[i]);
    }
    CHECK(pm_tcache->stack[TAG].cap > pm_classes[CLASS].tcache_cap);
    pm_stats_get(&s);
    CHECK_EQ(s.cls[CLASS].cached, pm_tcache_held(CLASS));
    CHECK(s.cls[CLASS].cached >= cached() && cached() > 0);
    CHECK(pm_trim() && pm_tcache_held(CLASS) == 0);
    CHECK_EQ(pm_tcache->stack[TAG].cap, pm_classes[CLASS].tcache_cap);
    verify();
}

// A thread whose first request is a free of another's block caches it.
static void *free_it(void *p) {
    CHECK(pm_malloc(1000) && pm_tcache->stacks == PM_CLASSES + 1);
    pm_free(p);
    CHECK(pm_tcache->stacks == PM_TAGS && cached() == 1);
    CHECK(pointer_free(SIZE) == p);
    return NULL;
}

static void test_freed_by_another_thread(void) {
    pthread_t thread;
    begin();
    MUST(pthread_create(&thread, NULL, free_it, pointer_free(SIZE)) == 0);
    pthread_join(thread, NULL);
    verify();
}

// Threads of different arenas have slabs of different arenas.
static void *take_one(void *arg) {
    (void)arg;
    return pointer_free(SIZE);
}

static void test_an_arena_for_each_core(void) {
    pthread_t thread[3];
    void *p[3];
    begin();
    MUST(pointer_free(SIZE) != NULL);
    for (unsigned i = 0; i < 3; i++)
        MUST(pthread_create(&thread[i], NULL, take_one, NULL) == 0);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(thread[i], &p[i]);
    for (unsigned i = 0; i < 3; i++) {
        unsigned arena = vslab_of(p[i])->arena, place = pm_arena_place(arena);
        CHECK_EQ(pm_kind_of_arena(arena), PM_KIND_POINTER_FREE);
        CHECK_EQ(arena, pm_kind_arena(PM_KIND_POINTER_FREE, place));
        CHECK_EQ(pm_arenas[arena].node, pm_arenas[place].node);
        CHECK(!pm_arena_is_apart(arena) && place < pm_kinds_first_arena);
    }
    for (unsigned arena = 0; arena < pm_arena_count; arena++)
        CHECK_EQ(pm_arenas[arena].number, arena);
    CHECK_EQ(pm_arena_count, pm_kind_arenas_end(PM_KIND_POINTER_FREE));
    verify();
}

// Sparse slabs take up blocks of another class, of their kind.
static void test_morph(void) {
    static void *held[40000];
    unsigned old = 0;
    begin();
    for (unsigned i = 0; i < 40000; i++)
        MUST(held[i] = pointer_free(100));
    for (unsigned i = 0; i < 40000; i++)
        if (i % 10)
            pm_free(held[i]);
    pm_trim();
    uint64_t begun = pm_morph_counters.begun;
    for (unsigned i = 0; i < 20000; i++) {
        void *p = pointer_free(130);
        MUST(p && *pm_tag_at(p) == PM_TAG_POINTER_FREE + pm_size_to_class(130));
        CHECK_EQ(vslab_of(p)->kind, PM_KIND_POINTER_FREE);
        old += vslab_of(p)->old_class != 0;
    }
    CHECK(pm_morph_counters.begun > begun && old > 0);
    for (unsigned i = 0; i < 40000; i += 10) {
        CHECK_EQ(pm_usable_size(held[i]), 112);
        pm_free(held[i]);
    }
    verify();
}

// ---- what is refused ----------------------------------------------------------------------------

static void free_twice(void) {
    begin();
    void *p = pointer_free(SIZE);
    pm_free(p);
    pm_free(p);
}

static void free_inside(void) {
    begin();
    pm_free((char *)pointer_free(SIZE) + 16);
}

static void test_misuse(void) {
    CHECK_EQ(in_child(free_twice), 128 + SIGABRT);
    CHECK_EQ(in_child(free_inside), 128 + SIGABRT);
    begin();
    CHECK(pointer_free(SIZE) != NULL);
    errno = 0;
    CHECK(!pmalloc_alloc(SIZE, 24, PMALLOC_POINTER_FREE) && errno == EINVAL);
    errno = 0;
    CHECK(!pmalloc_alloc(SIZE, 12, PMALLOC_POINTER_FREE) && errno == EINVAL);
    for (size_t align = 1; align <= 4096; align *= 2) {
        char *p = pmalloc_alloc(SIZE, align, PMALLOC_POINTER_FREE);
        CHECK(p && (uintptr_t)p % align == 0 && (uintptr_t)p % 16 == 0);
        pm_free(p);
    }
    char *zeroes = pointer_free(SIZE);
    memset(zeroes, 'x', SIZE);
    pm_free(zeroes);
    CHECK(pmalloc_alloc(SIZE, 0, PMALLOC_POINTER_FREE | PMALLOC_ZERO) == zeroes);
    for (unsigned i = 0; i < SIZE; i++)
        CHECK_EQ(zeroes[i], 0);
    CHECK(pointer_free(0) != NULL);
}

// ---- kills --------------------------------------------------------------------------------------

// Blocks in caches are free after a kill; those that something reaches have their bytes.
#define KEPT 500u

static void fill_caches(void) {
    begin();
    uint64_t **table = pm_calloc(KEPT, sizeof *table);
    for (unsigned i = 0; i < 4 * KEPT; i++) {
        uint64_t *p = pointer_free(SIZE), *freed = pointer_free(SIZE);
        for (unsigned w = 0; w < SIZE / 8; w++)
            p[w] = freed[w] = i % KEPT;
        pm_free(table[i % KEPT]);
        table[i % KEPT] = p;
        pm_free(freed);
    }
    CHECK(cached() > 0);
    MUST(pmalloc_set_root(0, table) == 0);
    verify();
    die();
}

static void look(void) {
    struct pm_stats s;
    begin();
    uint64_t **table = pmalloc_get_root(0);
    MUST(table != NULL);
    pm_stats_get(&s);
    CHECK_EQ(s.cls[CLASS].used, KEPT);
    for (unsigned i = 0; i < KEPT; i++) {
        for (unsigned w = 0; w < SIZE / 8; w++)
            CHECK_EQ(table[i][w], i);
        CHECK_EQ(pm_find(table[i]).kind, PM_KIND_POINTER_FREE);
        pm_free(table[i]);
        MUST(table[i] = pointer_free(SIZE));
        for (unsigned w = 0; w < SIZE / 8; w++)
            table[i][w] = i;
    }
    verify();
    die();
}

static void test_kills(void) {
    CHECK_EQ(in_child(fill_caches), 128 + SIGKILL);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(in_child(look), 128 + SIGKILL);
}

int main(void) {
    RUN_CHILD(tags);
    RUN_CHILD(stacks_begin_late);
    RUN_CHILD(batches_return);
    RUN_CHILD(freed_by_another_thread);
    RUN_CHILD(an_arena_for_each_core);
    RUN_CHILD(morph);
    RUN_CHILD(misuse);
    RUN_CHILD(kills);
    return CHECK_DONE();
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The slabs of a heap that a start kept without collecting: their free bits are not touched before
// a block is freed, and everything that asks for a block finds it as after any start.
#include <pthread.h>
#include <sys/mman.h>

#include "blocks/alloc.h"
#include "blocks/slab.h"
#include "blocks/verify.h"
#include "session.h"

#define BLOCKS 400000u // of 16 to 64 bytes: 250 slabs
#define THREADS 4u

static void begin(const char *collect) {
    setenv("PMALLOC_COLLECT", collect, 1);
    settings();
    pm_process_before_main();
}

static size_t size_of(unsigned i) { return 16 + i % 4 * 16; }

static void fill(void) {
    begin("always");
    char **table = pm_malloc(BLOCKS * sizeof *table);
    for (unsigned i = 0; i < BLOCKS; i++) {
        table[i] = pm_malloc(size_of(i));
        MUST(table[i] != NULL);
        memset(table[i], (int)i, size_of(i));
    }
    CHECK_EQ(pmalloc_set_root(0, table), 0);
    die();
}

static uint64_t slabs_of_heap(void) { return pm_heap.shard[0].frontier >> PM_SLAB_SHIFT; }

// Pages of the free bits that the process has touched.
static unsigned pages_of_bits(void) {
    static unsigned char in[1024];
    size_t bytes = (slabs_of_heap() >> PM_BITS_SHIFT) * sizeof *pm_slab_bits,
           pages = (bytes + 4095) / 4096;
    unsigned touched = 0;
    MUST(pages <= sizeof in && mincore(pm_slab_bits, bytes, in) == 0);
    for (size_t i = 0; i < pages; i++)
        touched += in[i] & 1;
    return touched;
}

static char **keep(void) {
    begin("later");
    char **table = pmalloc_get_root(0);
    MUST(table && pm_process_recovery()->uncollected);
    CHECK(pm_process_recovery()->live_objects > BLOCKS);
    return table;
}

// PMAlloc's own requests at the start have slabs of their own.
static void leave_alone(void) {
    char **table = keep();
    CHECK(slabs_of_heap() > 200 && pages_of_bits() <= 4);
    for (unsigned i = 0; i < BLOCKS; i++)
        MUST(pm_usable_size(table[i]) >= size_of(i));
    verify();
    die();
}

static void change(void) {
    char **table = keep();
    pm_free(table[0]);
    CHECK_EQ(pm_find_tag(table[0]), PM_TAG_NONE); // a second free would be found
    CHECK(pm_find_tag(table[4]) != PM_TAG_NONE);
    CHECK_EQ(pm_find_tag(table[4] + 4), PM_TAG_NONE);
    for (unsigned i = 1; i < BLOCKS; i += 7) {
        table[i] = pm_realloc(table[i], 100);
        MUST(table[i] && table[i][0] == (char)i && table[i][15] == (char)i);
    }
    verify();
    table[0] = pm_malloc(16);
    die();
}

static char **blocks;

// Neighbours in a slab are freed by different threads, which all find the slab untouched.
static void *free_some(void *arg) {
    for (unsigned i = (unsigned)(uintptr_t)arg; i < BLOCKS / 2; i += THREADS) {
        CHECK(pm_usable_size(blocks[i]) >= 16);
        pm_free(blocks[i]);
        blocks[i] = NULL;
    }
    return NULL;
}

static void free_in_threads(void) {
    blocks = keep();
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, free_some, (void *)i) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    verify();
    die();
}

static void collect(void) {
    begin("always");
    char **table = pmalloc_get_root(0);
    CHECK(pm_process_recovery()->marked);
    CHECK_EQ(pm_process_recovery()->live_objects, BLOCKS / 2 + 1);
    for (unsigned i = BLOCKS / 2; i < BLOCKS; i++)
        CHECK(table[i][0] == (char)i && table[i][15] == (char)i);
    verify();
}

static void test_kept(void) {
    CHECK_EQ(in_child(fill), 128 + SIGKILL);
    CHECK_EQ(in_child(leave_alone), 128 + SIGKILL);
    CHECK_EQ(in_child(change), 128 + SIGKILL);
    CHECK_EQ(in_child(free_in_threads), 128 + SIGKILL);
    CHECK_EQ(in_child(collect), 0);
}

int main(void) {
    RUN_CHILD(kept);
    return CHECK_DONE();
}

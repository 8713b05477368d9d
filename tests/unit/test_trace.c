// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Marking and sweeping of collectable blocks, each as its kind says. The stack of grey blocks is
// small here, so that it overflows.
#define COLLECT_STACK 16u
#define COLLECT_POOL 16u
#define ALONE 256u
#include "live/trace.c"

#include <stdlib.h>

#include "heap_fixture.h"
#include "live/sweep.h"
#include "process/entry.h"
#include "process/start.h"

enum { ATOMIC, NORMAL, UNCOLLECTABLE, BITMAP, TYPED, PROC, INDIRECT };

static unsigned swept;

static void release(void *block) {
    swept++;
    pm_free(block);
}

// What GC_mark_and_push() does: the second word alone is a pointer.
static void *second_word(uint64_t *block, void *entries, void *limit, uint64_t argument) {
    (void)limit;
    CHECK_EQ(argument, 7);
    pm_trace_pointer((void *)block[1]);
    return entries;
}

static void begin(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_process_before_main();
    MUST(pm_col_init() && pm_sweep_begin());
    pm_trace_procs[9] = second_word;
    pm_col_kinds[ATOMIC] = (struct pm_col_kind){.mortal = true};
    pm_col_kinds[NORMAL] = (struct pm_col_kind){.add_size = true, .mortal = true};
    pm_col_kinds[UNCOLLECTABLE] = (struct pm_col_kind){.add_size = true};
    pm_col_kinds[BITMAP] = (struct pm_col_kind){.descriptor = 5ull << 61 | 1, .mortal = true};
    pm_col_kinds[TYPED] =
        (struct pm_col_kind){.descriptor = PM_TRACE_LAST_WORD, .add_size = true, .mortal = true};
    pm_col_kinds[PROC] =
        (struct pm_col_kind){.descriptor = 7u << 8 | 9u << 2 | PM_TRACE_PROC, .mortal = true};
    pm_col_kinds[INDIRECT] = (struct pm_col_kind){
        .descriptor = (uint64_t)(-8ll - PM_TRACE_INDIRECT_BIAS) | PM_TRACE_PER_OBJECT,
        .mortal = true};
}

static void *get(unsigned kind, size_t size) {
    void *p = pm_calloc(1, size);
    MUST(p);
    pm_col_set(p, kind);
    return p;
}

// Collects with one root. Returns how many blocks were freed.
static unsigned collect(const void *root) {
    struct pm_error err;
    swept = 0;
    MUST(pm_trace_begin(&err) == PM_OK);
    pm_trace_range(&root, sizeof root);
    pm_trace_explicit();
    pm_trace_all();
    struct pm_sweep_sum sum = pm_sweep_list(true);
    pm_trace_end();
    while (pm_sweep(1000, release)) {
    }
    CHECK_EQ(swept, sum.dead_blocks);
    return swept;
}

static void test_sizes(void) {
    static const size_t size[] = {16, 48, 1000, 14000, 16385, 100000, 3 << 20};
    const unsigned count = sizeof size / sizeof size[0];
    begin();
    void **root = get(NORMAL, count * sizeof *root);
    for (unsigned i = 0; i < count; i++)
        root[i] = (char *)get(ATOMIC, size[i]) + size[i] - 1; // their last bytes
    CHECK_EQ(collect(root), 0);
    for (unsigned i = 0; i < count; i++) {
        root[i] = NULL;
        CHECK_EQ(collect(root), 1);
    }
    CHECK_EQ(collect(NULL), 1);
    CHECK_EQ(collect(NULL), 0);
}

// Each kind looks at the words that it names, and at no others.
static void test_kinds(void) {
    static const uint64_t type[2] = {0, 2u << 2 | 0}; // the descriptor: 8 bytes
    static const struct {
        unsigned kind, alive;
    } test[] = {{ATOMIC, 0}, {NORMAL, 3}, {BITMAP, 2}, {TYPED, 1}, {PROC, 1}, {INDIRECT, 0}};
    begin();
    for (unsigned i = 0; i < sizeof test / sizeof test[0]; i++) {
        void **block = get(test[i].kind, 64);
        for (unsigned word = 0; word < 3; word++)
            block[word] = get(ATOMIC, 32);
        if (test[i].kind == TYPED)
            ((uint64_t *)block)[7] = 1ull << 61 | PM_TRACE_BITMAP;
        if (test[i].kind == INDIRECT) {
            block[0] = (void *)(uintptr_t)type;
            collect(block);
            continue;
        }
        CHECK_EQ(collect(block), 3 - test[i].alive);
        CHECK_EQ(collect(NULL), 1 + test[i].alive);
    }
}

// Blocks that are not the collector's, and uncollectable ones, are roots and stay.
static void test_explicit(void) {
    begin();
    void **plain = pm_calloc(1, 64), **kept = get(UNCOLLECTABLE, 64), **large = pm_calloc(1, 50000);
    plain[3] = get(NORMAL, 32);
    kept[3] = get(NORMAL, 32);
    large[3000] = get(NORMAL, 40000);
    CHECK_EQ(collect(NULL), 0);
    plain[3] = NULL;
    CHECK_EQ(collect(NULL), 1);
    kept[3] = NULL;
    CHECK_EQ(collect(NULL), 1);
    large[3000] = NULL;
    CHECK_EQ(collect(NULL), 1);
    CHECK_EQ(pm_col_at(kept), UNCOLLECTABLE | PM_COL_OWNED);
    CHECK_EQ(pm_col_at(plain), 0);
}

static void test_overflow(void) {
    const unsigned count = 3000;
    begin();
    void ***root = get(NORMAL, count * sizeof *root);
    for (unsigned i = 0; i < count; i++) {
        root[i] = get(NORMAL, 16);
        root[i][1] = get(NORMAL, 16);
    }
    CHECK_EQ(collect(root), 0);
    root[count / 2][1] = NULL;
    CHECK_EQ(collect(root), 1);
    CHECK_EQ(collect(NULL), 2 * count);
}

// For finalizers: what a block reaches, without the block; and whether it reaches itself.
static void test_children(void) {
    struct pm_error err;
    begin();
    void **block = get(NORMAL, 64), **child = get(NORMAL, 64);
    block[0] = child;
    block[1] = block;
    for (unsigned i = 0; i < 2; i++) {
        MUST(pm_trace_begin(&err) == PM_OK);
        pm_trace_children(block, i == 0);
        pm_trace_all();
        CHECK(pm_trace_is_alive(child + 7));
        CHECK_EQ(pm_trace_is_alive(block), i);
        CHECK(pm_trace_is_alive(&err));
        pm_sweep_list(false); // nothing dies
        pm_trace_end();
    }
    CHECK(!pm_sweep(UINT64_MAX, release));
    CHECK_EQ(collect(NULL), 2);
}

int main(void) {
    RUN_CHILD(sizes);
    RUN_CHILD(kinds);
    RUN_CHILD(explicit);
    RUN_CHILD(overflow);
    RUN_CHILD(children);
    return CHECK_DONE();
}

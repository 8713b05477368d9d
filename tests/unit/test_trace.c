// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Marking and sweeping of collectable blocks, each as its kind says; by any number of markers.
// Stacks and pool are small here, so that they overflow, but where a test says otherwise. Helpers
// come early.
#include <stdint.h>
static uint32_t stack_room = 16, pool_room = 16;
#define COLLECT_STACK stack_room
#define COLLECT_POOL pool_room
#define ALONE 256u
#include "live/trace.c"

#include <stdlib.h>

#include "heap_fixture.h"
#include "live/sweep.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "threads/tasks.h"

enum { ATOMIC, NORMAL, UNCOLLECTABLE, BITMAP, TYPED, PROC, INDIRECT };

static unsigned swept, most_took_part;

static void release(void *block, unsigned kind) {
    (void)kind;
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
    unsigned took_part = pm_trace_took_part();
    most_took_part = took_part > most_took_part ? took_part : most_took_part;
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

// ---- a random graph -----------------------------------------------------------------------------

#define NODES 60000u
#define WORDS_MAX 8u
#define WIDE 200000u // words of an array: more than a piece
#define CHAIN 20000u // the first nodes are also a list

static struct node {
    uint64_t *at;
    unsigned kind, words;
    bool reached;
    uint32_t to[WORDS_MAX]; // NODES: nothing
} node[NODES];
static uint64_t *wide[2]; // arrays of nodes; the first one's are reached
static uint32_t seed;
static unsigned markers;

static uint32_t random_below(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)seed * n) >> 32);
}

static bool counts(const struct node *n, unsigned word) {
    switch (n->kind) {
    case ATOMIC:
        return false;
    case BITMAP:
        return word == 0 || word == 2;
    case TYPED:
        return word < 2;
    case PROC:
        return word == 1;
    default:
        return true;
    }
}

static void build_graph(void) {
    static const unsigned kind[] = {NORMAL, NORMAL, NORMAL, ATOMIC, BITMAP, TYPED, PROC};
    for (struct node *n = node; n < node + NODES; n++) {
        *n = (struct node){.kind = n < node + CHAIN ? NORMAL : kind[random_below(7)],
                           .words = 4 + random_below(WORDS_MAX - 4)};
        n->at = get(n->kind, n->words * sizeof *n->at);
    }
    for (unsigned i = 0; i < NODES; i++) {
        struct node *n = &node[i];
        size_t last = pm_usable_size(n->at) / sizeof *n->at - 1;
        for (unsigned w = 0; w < WORDS_MAX; w++) {
            n->to[w] = w < n->words && random_below(5) == 0 ? random_below(NODES) : NODES;
            if (w == 0 && i + 1 < CHAIN)
                n->to[w] = i + 1;
            if (n->to[w] < NODES) // the first byte, or into the block
                n->at[w] = (uintptr_t)node[n->to[w]].at + random_below(2) * 9;
        }
        if (n->kind == TYPED) {
            n->at[last] = 3ull << 62 | PM_TRACE_BITMAP;
            for (size_t w = last; w < WORDS_MAX; w++)
                n->to[w] = NODES;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        wide[i] = get(NORMAL, WIDE * sizeof *wide[i]);
        for (unsigned w = 0; w < WIDE; w += 1000)
            wide[i][w] = (uintptr_t)node[CHAIN + random_below(NODES - CHAIN)].at;
    }
}

// What should be alive, by a walk of the test's own.
static unsigned walk(void) {
    static uint32_t todo[NODES];
    unsigned count = 0, depth = 0;
    for (unsigned w = 0; w < WIDE; w += 1000)
        for (unsigned i = CHAIN; i < NODES; i++)
            if (wide[0][w] == (uintptr_t)node[i].at && !node[i].reached) {
                node[i].reached = true;
                todo[depth++] = i;
            }
    while (depth) {
        const struct node *n = &node[todo[--depth]];
        count++;
        for (unsigned w = 0; w < n->words; w++) {
            if (n->to[w] == NODES || !counts(n, w) || node[n->to[w]].reached)
                continue;
            node[n->to[w]].reached = true;
            todo[depth++] = n->to[w];
        }
    }
    return count;
}

static void count_task(pid_t id, void *count) {
    (void)id;
    ++*(unsigned *)count;
}

static void check_graph(void) {
    unsigned wrong = 0;
    pm_trace_wanted = markers;
    begin();
    seed = 20260 + markers;
    build_graph();
    unsigned alive = walk();
    CHECK(alive > NODES / 10 && alive < NODES);
    CHECK_EQ(collect(wide[0]), NODES + 1 - alive);
    for (const struct node *n = node; n < node + NODES; n++)
        wrong += (pm_col_at(n->at) != 0) != n->reached;
    CHECK_EQ(wrong, 0);
    for (unsigned i = 0; i < 200 && most_took_part < 2; i++)
        CHECK_EQ(collect(wide[0]), 0);
    CHECK_EQ(markers > 1, most_took_part > 1);
    CHECK_EQ(pm_tasks_each_other(count_task, &wrong), true);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(collect(NULL), alive + 1);
}

static void test_graph(void) {
    static const unsigned counts[] = {1, 2, 3, 4, 8, 16};
    for (unsigned i = 0; i < 2 * sizeof counts / sizeof counts[0]; i++) {
        markers = counts[i / 2];
        stack_room = i % 2 ? 32768 : 16;
        pool_room = i % 2 ? 1u << 20 : 16;
        CHECK_EQ(in_child(check_graph), 0);
    }
}

// Where threads cannot be made, one marks.
static void test_alone(void) {
    atomic_store(&pm_helpers_forbidden, true);
    markers = 4;
    begin();
    seed = 7;
    build_graph();
    unsigned alive = walk();
    CHECK_EQ(collect(wide[0]), NODES + 1 - alive);
    CHECK_EQ(most_took_part, 1);
}

int main(void) {
    RUN_CHILD(sizes);
    RUN_CHILD(kinds);
    RUN_CHILD(explicit);
    RUN_CHILD(overflow);
    RUN_CHILD(children);
    RUN_CHILD(graph);
    RUN_CHILD(alone);
    return CHECK_DONE();
}

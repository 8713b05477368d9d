// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Work for a collector, in the interface of libgc. MODE N:
//   pause      N nodes that all live, in the order of their making; then collections
//   shuffled   the same, linked in a random order
//   trees      binary trees of all depths up to N, made and let go; one tree and an array stay
//   strings    N blocks without pointers, of 16 to 1000 bytes, of which a table keeps some
//   lists      N short lists; some stay, each in the place of an older one
// It prints milliseconds of wall clock and of processor time: of one collection, or of the work.
#define GC_THREADS
#include <gc/gc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLLECTIONS 7
#define KEPT 100000

struct node {
    struct node *left, *right;
    long a, b;
};
static struct node **table, *stays;
static double *array;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static uint64_t seed = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static void make_nodes(long n, bool shuffled) {
    table = GC_MALLOC((size_t)n * sizeof *table);
    for (long i = 0; i < n; i++)
        table[i] = GC_MALLOC(sizeof **table);
    for (long i = n - 1; shuffled && i > 0; i--) {
        long j = (long)random_below((uint64_t)i + 1);
        struct node *other = table[i];
        table[i] = table[j];
        table[j] = other;
    }
    for (long i = 0; i < n; i++) {
        table[i]->left = 2 * i + 1 < n ? table[2 * i + 1] : NULL;
        table[i]->right = 2 * i + 2 < n ? table[2 * i + 2] : NULL;
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void pauses(void) {
    double wall[COLLECTIONS], cpu[COLLECTIONS];
    for (int i = 0; i < COLLECTIONS; i++) {
        wall[i] = -now(CLOCK_MONOTONIC);
        cpu[i] = -now(CLOCK_PROCESS_CPUTIME_ID);
        GC_gcollect();
        wall[i] += now(CLOCK_MONOTONIC);
        cpu[i] += now(CLOCK_PROCESS_CPUTIME_ID);
    }
    qsort(wall, COLLECTIONS, sizeof *wall, by_size);
    qsort(cpu, COLLECTIONS, sizeof *cpu, by_size);
    printf("wall=%.2f cpu=%.2f\n", wall[COLLECTIONS / 2], cpu[COLLECTIONS / 2]);
}

static struct node *tree(int depth) {
    struct node *n = GC_MALLOC(sizeof *n);
    if (depth > 0) {
        n->left = tree(depth - 1);
        n->right = tree(depth - 1);
    }
    return n;
}

static long count(const struct node *n) { return n ? 1 + count(n->left) + count(n->right) : 0; }

static void check(bool right) {
    if (!right) {
        puts("wrong");
        exit(1);
    }
}

static void trees(int depth) {
    stays = tree(depth);
    array = GC_MALLOC_ATOMIC(500000 * sizeof *array);
    for (int i = 0; i < 500000; i++)
        array[i] = i;
    for (int d = 4; d <= depth; d += 2)
        for (long i = 0; i < 2l << (depth - d + 3); i++)
            check(i % 64 ? tree(d) != NULL : count(tree(d)) == (2l << d) - 1);
    check(count(stays) == (2l << depth) - 1 && (int)array[1000] == 1000);
}

static void strings(long n) {
    char **kept = GC_MALLOC(KEPT * sizeof *kept);
    for (long i = 0; i < n; i++) {
        size_t size = 16 + random_below(985);
        char *text = GC_MALLOC_ATOMIC(size);
        memset(text, (int)i, size);
        if (i % 8 == 0)
            kept[random_below(KEPT)] = text;
    }
    for (long i = 0; i < KEPT; i++)
        check(!kept[i] || kept[i][0] == kept[i][15]);
}

static void lists(long n) {
    struct node **kept = GC_MALLOC(KEPT * sizeof *kept);
    for (long i = 0; i < n; i++) {
        struct node *list = NULL;
        for (uint64_t k = random_below(20); k < 20; k++) {
            struct node *more = GC_MALLOC(sizeof *more);
            more->left = list;
            more->a = list ? list->a + 1 : 1;
            list = more;
        }
        if (i % 4 == 0)
            kept[random_below(KEPT)] = list;
    }
    for (long i = 0; i < KEPT; i++)
        for (const struct node *l = kept[i]; l; l = l->left)
            check(l->a == (l->left ? l->left->a + 1 : 1));
}

int main(int argc, char **argv) {
    const char *mode = argc == 3 ? argv[1] : "";
    long n = argc == 3 ? atol(argv[2]) : 0;
    GC_INIT();
    GC_start_mark_threads();
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    if (!strcmp(mode, "pause") || !strcmp(mode, "shuffled")) {
        make_nodes(n, *mode == 's');
        pauses();
        return 0;
    }
    if (!strcmp(mode, "trees"))
        trees((int)n);
    else if (!strcmp(mode, "strings"))
        strings(n);
    else if (!strcmp(mode, "lists"))
        lists(n);
    else
        return fprintf(stderr, "usage: collect pause|shuffled|trees|strings|lists N\n"), 2;
    printf("wall=%.2f cpu=%.2f\n", now(CLOCK_MONOTONIC) - wall,
           now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}

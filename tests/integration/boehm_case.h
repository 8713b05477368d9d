// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What boehm.c and boehm_weak.c share.
#ifndef BOEHM_CASE_H
#define BOEHM_CASE_H

#define GC_THREADS
#include <gc/gc.h>
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>
#include <gc/gc_typed.h>
#include <gc/javaxfc.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
static inline void fail(const char *what, int line) {
    printf("line %d: %s\n", line, what);
    fflush(stdout);
    _exit(1);
}

struct node {
    struct node *left, *right;
    long value;
};

// No old pointer is left on the stack.
__attribute__((noinline, unused)) static void wipe(void) {
    volatile char room[65536];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}
static inline void *run(void *work) {
    ((void (*)(void))work)();
    return NULL;
}
// Runs `work` on a stack of its own.
static inline void aside(void (*work)(void)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, (void *)work) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    wipe();
}
static inline void collect(void) {
    wipe();
    for (int i = 0; i < 3; i++)
        GC_gcollect();
}

static inline struct node *tree(int depth) {
    struct node *n = GC_NEW(struct node);
    CHECK(n && !n->left && !n->right && !n->value);
    n->value = depth;
    if (depth) {
        n->left = tree(depth - 1);
        n->right = tree(depth - 1);
    }
    return n;
}
static inline long sum(const struct node *n) {
    return n ? n->value + sum(n->left) + sum(n->right) : 0;
}

#define MANY 200
extern void **links;
extern struct node *kept;

struct test {
    const char *name;
    void (*run)(void);
};
#define CASE(name)                                                                                 \
    { #name, name }
extern const struct test weak_cases[]; // ends with a NULL name

#endif

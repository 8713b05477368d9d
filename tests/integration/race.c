// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that ends while its threads work: each pushes on and pops from a stack of its own, so that memory is freed
// and used again at once. Its pointers lie in pages far apart. At its start it looks at what the last run left.
//
//     race MICROSECONDS      prints how many nodes there are; status 3 where one is not what was pushed
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 3, DEEP = 40 };

struct node {
    struct node *next;
    uint64_t depth, check;
    uint64_t fill[5];
};

// volatile: a store to it means that what it points to is complete.
struct {
    struct node *volatile top;
    char page[9000];
} stack[THREADS];

static uint64_t check_of(const struct node *n) {
    return n->depth * 0x9e3779b97f4a7c15 ^ (uint64_t)(uintptr_t)n->next;
}

static void fill(struct node *n, struct node *next) {
    n->next = next;
    n->depth = next ? next->depth + 1 : 1;
    n->check = check_of(n);
    for (int i = 0; i < 5; i++)
        n->fill[i] = n->check + (uint64_t)i;
}

static int is_whole(const struct node *n) {
    for (int i = 0; i < 5; i++)
        if (n->fill[i] != n->check + (uint64_t)i)
            return 0;
    return n->check == check_of(n) && n->depth == (n->next ? n->next->depth + 1 : 1);
}

static void *work(void *arg) {
    struct node *volatile *top = &stack[(uintptr_t)arg].top;
    for (uint64_t seed = (uintptr_t)arg + 1;; seed = seed * 6364136223846793005u + 1) {
        struct node *old = *top;
        if (old && (seed >> 40) % DEEP < old->depth) {
            *top = old->next;
            free(old);
        } else {
            struct node *n = malloc(sizeof *n);
            fill(n, old);
            __asm__ volatile("" ::: "memory");
            *top = n;
        }
    }
    return arg;
}

int main(int argc, char **argv) {
    long nodes = 0;
    for (int i = 0; i < THREADS; i++)
        for (const struct node *n = stack[i].top; n; n = n->next, nodes++)
            if (!is_whole(n)) {
                fprintf(stderr, "stack %d: the node at %p is torn\n", i, (const void *)n);
                return 3;
            }
    printf("%ld\n", nodes);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i) != 0)
            return 4;
    }
    usleep(argc > 1 ? (useconds_t)atoi(argv[1]) : 1000);
    return 0;
}

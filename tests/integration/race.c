// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that ends while its threads work. Each thread pushes to and pops from a stack of its
// own, so memory is freed and used again at once. The stacks' pointers lie in pages far apart. At
// its start the program checks what the last run left.
//
//     race MICROSECONDS [unheard]    prints how many nodes there are
//
// Exit status 3: a node is not what was pushed. unheard: the threads block the signals that libc
// keeps for itself, so nothing stops them.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, DEEP = 40 };

struct node {
    struct node *next;
    uint64_t depth, check, serial;
    uint64_t fill[4];
};

// A store to a volatile pointer means that the node it points to is complete. The serial number of
// the node at each depth is stored before the node itself. The two differ if the heap and these
// pages were cut off at two instants.
struct {
    struct node *volatile top;
    volatile uint64_t serial[DEEP + 1];
    char page[9000];
} stack[THREADS];

static uint64_t check_of(const struct node *n) {
    return n->depth * 0x9e3779b97f4a7c15 ^ (uint64_t)(uintptr_t)n->next;
}

static void fill(struct node *n, struct node *next, uint64_t serial) {
    n->next = next;
    n->serial = serial;
    n->depth = next ? next->depth + 1 : 1;
    n->check = check_of(n);
    for (int i = 0; i < 4; i++)
        n->fill[i] = n->check + (uint64_t)i;
}

static int is_whole(const struct node *n) {
    for (int i = 0; i < 4; i++)
        if (n->fill[i] != n->check + (uint64_t)i)
            return 0;
    return n->check == check_of(n) && n->depth == (n->next ? n->next->depth + 1 : 1);
}

static int unheard;

static void *work(void *arg) {
    const uint64_t libcs = 1ull << 32 | 1ull << 33;
    if (unheard && syscall(SYS_rt_sigprocmask, SIG_BLOCK, &libcs, NULL, sizeof libcs) != 0)
        abort();
    struct node *volatile *top = &stack[(uintptr_t)arg].top;
    uint64_t pushed = (uint64_t)time(NULL) << 32; // other numbers than in earlier runs
    for (uint64_t seed = (uintptr_t)arg + 1;; seed = seed * 6364136223846793005u + 1) {
        struct node *old = *top;
        if (old && (seed >> 40) % DEEP < old->depth) {
            *top = old->next;
            free(old);
        } else {
            struct node *n = malloc(sizeof *n);
            uint64_t serial = ++pushed;
            stack[(uintptr_t)arg].serial[old ? old->depth + 1 : 1] = serial;
            fill(n, old, serial);
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
            if (!is_whole(n) || n->serial != stack[i].serial[n->depth]) {
                fprintf(stderr, "stack %d: the node at %p is torn\n", i, (const void *)n);
                return 3;
            }
    printf("%ld\n", nodes);
    unheard = argc > 2 && strcmp(argv[2], "unheard") == 0;
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i) != 0)
            return 4;
    }
    usleep(argc > 1 ? (useconds_t)atoi(argv[1]) : 1000);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A long list that is turned round again and again: all its pointers move. Between the nodes lies
// garbage.
//
//   beside grow NODES            makes it, and is killed
//   beside turn SECONDS [fork]   turns it for so long; prints the number of nodes. With `fork`
//                                children look at it meanwhile
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct node {
    struct node *next;
    uint64_t value, check;
};

// A node moves from side[from] to the other side by way of `hand`.
static struct list {
    struct node *side[2], *hand;
    uint64_t nodes;
    unsigned from;
} * store;

#define IN_ORDER() __asm__ volatile("" ::: "memory")

static void die(const char *what) {
    fprintf(stderr, "beside: %s\n", what);
    _exit(3);
}

static struct node *new_node(uint64_t value) {
    struct node *n = malloc(sizeof *n + value % 7 * 16);
    if (!n)
        die("no memory");
    *n = (struct node){NULL, value, value * 0x9e3779b97f4a7c15ull};
    return n;
}

static void grow(uint64_t nodes) {
    store = calloc(1, sizeof *store);
    for (uint64_t i = 0; i < nodes; i++) {
        struct node *n = new_node(i);
        n->next = store->side[0];
        store->side[0] = n;
        *(volatile char *)malloc(i % 3000 ? 50 : 60000) = 1; // garbage
    }
    store->nodes = nodes;
    kill(getpid(), SIGKILL);
}

static uint64_t length(const struct node *n) {
    uint64_t count = 0;
    for (; n; n = n->next, count++)
        if (n->check != n->value * 0x9e3779b97f4a7c15ull)
            die("a node has changed");
    return count;
}

static void check(void) {
    if (length(store->side[0]) + length(store->side[1]) != store->nodes)
        die("nodes are missing");
}

static void lay_down(struct node **to) {
    IN_ORDER();
    store->hand->next = *to;
    IN_ORDER();
    *to = store->hand;
    IN_ORDER();
    store->hand = NULL;
    IN_ORDER();
}

// Whatever a kill has left in the hand.
static void repair(void) {
    struct node *n = store->hand;
    if (n && n != store->side[0] && n != store->side[1])
        lay_down(&store->side[1 - store->from]);
    store->hand = NULL;
}

// Every eighth node is replaced by a new one.
static void turn(void) {
    struct node **from = &store->side[store->from], **to = &store->side[1 - store->from], *n;
    for (uint64_t i = 0; (n = *from) != NULL; i++) {
        store->hand = n;
        IN_ORDER();
        *from = n->next;
        IN_ORDER();
        if (i % 8 == 0) {
            struct node *fresh = new_node(n->value);
            IN_ORDER();
            store->hand = fresh;
            IN_ORDER();
            free(n);
        }
        lay_down(to);
    }
    store->from = 1 - store->from;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void look_in_child(void) {
    int status = 1;
    pid_t pid = fork();
    if (pid == 0) {
        turn();
        check();
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0)
        die("a child has failed");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "grow") == 0)
        grow(strtoul(argv[2], NULL, 10));
    if (argc < 3 || !store)
        return 2;
    repair();
    check();
    puts("ready");
    fflush(stdout);
    double end = now() + strtod(argv[2], NULL);
    do {
        turn();
        if (argc > 3)
            look_in_child();
        check();
    } while (now() < end);
    printf("%lu nodes\n", (unsigned long)store->nodes);
    return 0;
}

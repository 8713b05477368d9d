// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A list of gc.h that outlives its program: prints its length, adds nodes among much garbage,
// prints the length, and is killed.
#include <gc/gc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next;
    char *text; // pointer-free
    long number;
};
struct node *list;

static long length(void) {
    long n = 0;
    char expected[32];
    for (struct node *at = list; at; at = at->next, n++) {
        snprintf(expected, sizeof expected, "number %ld", at->number);
        if (strcmp(at->text, expected) != 0)
            return -1;
    }
    return n;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000, before = length();
    GC_INIT();
    printf("%ld\n", before);
    for (long i = 0; i < count; i++) {
        struct node *n = GC_MALLOC(sizeof *n);
        if (i % 10 != 0)
            continue;
        n->number = before + i / 10;
        n->text = GC_MALLOC_ATOMIC(32);
        snprintf(n->text, 32, "number %ld", n->number);
        n->next = list;
        list = n;
    }
    GC_gcollect();
    printf("%ld\n", length());
    fflush(stdout);
    raise(SIGKILL);
    return 0;
}

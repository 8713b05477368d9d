// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program with several variables that can be roots, some of them in the same page. It knows
// nothing of persistence. It pushes a node on each list that it is told, and prints how long all
// lists are.
//
//     roots [-k] [VARIABLE...]     -k: ends by SIGKILL
//
// Built three ways: as it is, with -DLIBRARY as a library of one more variable, and with
// -DENTRIES=N for other sizes.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next;
    long number;
    char fill[100];
};

// The length of a list, or -1 where a node is not what it was.
static long length(const struct node *n) {
    long count = 0;
    for (const struct node *at = n; at; at = at->next)
        count++;
    for (long left = count; n; n = n->next, left--)
        if (n->number != left || n->fill[0] != (char)left || n->fill[99] != (char)left)
            return -1;
    return count;
}

static void push(struct node **list) {
    struct node *n = malloc(sizeof *n);
    if (!n)
        exit(4);
    n->next = *list;
    n->number = length(*list) + 1;
    memset(n->fill, (int)n->number, sizeof n->fill);
    *(struct node *volatile *)list = n;
}

#ifdef LIBRARY

struct node *lib_head;
static struct node *lib_hidden;
void lib_push(int hidden);
void lib_push(int hidden) { push(hidden ? &lib_hidden : &lib_head); }
long lib_length(int hidden);
long lib_length(int hidden) { return length(hidden ? lib_hidden : lib_head); }

#else

#ifndef ENTRIES
#define ENTRIES 4
#endif

void lib_push(int hidden);
long lib_length(int hidden);

long before = 10;                                             // in one page with ...
struct node *head __attribute__((section(".data")));          // ... this root and ...
static struct node *hidden __attribute__((section(".data"))); // ... this one, and ...
long after = 20;                                              // ... this
struct {
    long generation;
    struct node *list[ENTRIES];
} table = {.generation = 100};
static struct node *in_bss;
static char wide[9000]; // a root of three pages, with a pointer in its middle
struct node **in_wide(void);
struct node **in_wide(void) {
    return (struct node **)(((uintptr_t)wide + 4500) & -8ul);
}

static struct node **named(const char *name) {
    return !strcmp(name, "head")     ? &head
           : !strcmp(name, "hidden") ? &hidden
           : !strcmp(name, "table")  ? &table.list[ENTRIES - 1]
           : !strcmp(name, "in_bss") ? &in_bss
           : !strcmp(name, "wide")   ? in_wide()
                                     : NULL;
}

int main(int argc, char **argv) {
    int kill = argc > 1 && !strcmp(argv[1], "-k");
    before++, after++, table.generation++;
    for (int i = 1 + kill; i < argc; i++) {
        struct node **list = named(argv[i]);
        if (list)
            push(list);
        else if (!strncmp(argv[i], "lib_", 4))
            lib_push(argv[i][4] == 'h' && argv[i][5] == 'i');
        else
            return 2;
    }
    printf("head=%ld hidden=%ld table=%ld in_bss=%ld wide=%ld lib_head=%ld lib_hidden=%ld "
           "before=%ld after=%ld generation=%ld\n",
           length(head), length(hidden), length(table.list[ENTRIES - 1]), length(in_bss),
           length(*in_wide()), lib_length(0), lib_length(1), before, after, table.generation);
    fflush(stdout);
    if (kill)
        raise(SIGKILL);
    return 0;
}

#endif

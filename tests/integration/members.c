// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Members of variables. Each is a pointer to a number, and counts the runs that found it: so the
// program prints which of them were restored. What is not a root counts from 0.
#include <stdio.h>
#include <stdlib.h>

struct number {
    long value;
};

struct server {
#ifdef GROWN // another build
    long more[2];
#endif
    long port; // is set in each run
    struct number *db, *commands;
    unsigned flag : 3;
    union {
        struct number *one;
        long word;
    };
    struct {
        char before;
        struct number *deep;
    } inner;
    struct number *rows[2][3];
};

// clang takes a variable apart without it: a static one, and with LTO each.
#define KEPT __attribute__((used))
KEPT struct server server;
KEPT static struct {
    long count;
    struct number *head;
} table[4];
KEPT struct number *grid[2][3];
struct server *elsewhere;
__thread struct server own;

static void visit(const char *name, struct number **at) {
    if (!*at)
        *at = calloc(1, sizeof **at);
    printf("%s %ld\n", name, (*at)->value++);
}

#ifdef TWIN // members_twin.c: another variable of the name `twin`, or a library
extern struct number **twins(void);
KEPT static struct {
    long before;
    struct number *head;
} twin;
#endif

// Its symbol has a number behind the name.
static struct number **local(void) {
    KEPT static struct { struct number *head; } kept;
    return &kept.head;
}

int main(void) {
    printf("port %ld\n", server.port);
    server.port = 6379;
    server.flag = 5;
    elsewhere = &server;
    own.port = 1;
    visit("db", &server.db);
    visit("commands", &server.commands);
    visit("one", &server.one);
    visit("deep", &server.inner.deep);
    visit("row", &server.rows[1][2]);
    visit("head", &table[3].head);
    table[3].count++;
    visit("grid", &grid[1][2]);
    visit("local", local());
#ifdef TWIN
    visit("twin", &twin.head);
    visit("other", twins());
#endif
}

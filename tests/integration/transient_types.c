// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of types with words that were declared transient, for test_transient.py.
//
//   transient_types MODE DO...   DO: declare (type 7), undeclare, make, look, reuse, move, commit,
//                                full, stack; MODE: kill or end, after these
#include "preload/pmalloc.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 3000
#define LARGE ((size_t)3 << 20)

struct session {
    struct session *next;
    void *before;
    char *thread; // transient
    void *after;
};
enum { MADE, POINTER_FREE, PINNED, LARGE_ONE, OTHER_TYPE, UNTYPED, SORTS };
static const char *const name[SORTS] = {"typed", "pointer_free", "pinned",
                                        "large", "other_type",   "untyped"};
static const unsigned flags[SORTS] = {PMALLOC_TYPE(7),
                                      PMALLOC_TYPE(7) | PMALLOC_POINTER_FREE,
                                      PMALLOC_TYPE(7) | PMALLOC_PINNED,
                                      PMALLOC_TYPE(7),
                                      PMALLOC_TYPE(8),
                                      0};
struct root {
    struct session *first[SORTS][COUNT];
};

static void fail(const char *what) {
    perror(what);
    exit(2);
}

// What only the transient word reaches is garbage.
static void fill(struct session *s) {
    s->thread = malloc(1000);
    s->before = s->after = s->thread ? (void *)~(uintptr_t)s->thread : NULL;
}

static void make(unsigned sort) {
    struct root *root = pmalloc_get_root(0);
    size_t size = sort == LARGE_ONE ? LARGE : sizeof(struct session);
    if (!root && (!(root = calloc(1, sizeof *root)) || pmalloc_set_root(0, root) != 0))
        fail("root");
    for (unsigned i = 0; i < (sort == LARGE_ONE ? 3 : COUNT); i++) {
        struct session *s = pmalloc_alloc(size, 0, flags[sort]);
        if (!s)
            fail("pmalloc_alloc");
        fill(s);
        root->first[sort][i] = s;
    }
}

// A small block and a large one of the type, and one without, lead to this thread's stack.
static void lead_to_stack(void) {
    static const unsigned sorts[] = {MADE, LARGE_ONE, UNTYPED};
    struct root *root = calloc(1, sizeof *root);
    if (!root || pmalloc_set_root(0, root) != 0)
        fail("root");
    for (unsigned i = 0; i < sizeof sorts / sizeof *sorts; i++) {
        size_t size = sorts[i] == LARGE_ONE ? LARGE : sizeof(struct session);
        struct session *s = pmalloc_alloc(size, 0, flags[sorts[i]] | PMALLOC_ZERO);
        if (!s)
            fail("pmalloc_alloc");
        s->thread = __builtin_frame_address(0);
        root->first[sorts[i]][0] = s;
    }
}

static void look(void) {
    const struct root *root = pmalloc_get_root(0);
    for (unsigned sort = 0; sort < SORTS; sort++) {
        unsigned null = 0, kept = 0, wrong = 0;
        for (unsigned i = 0; i < COUNT && root->first[sort][i]; i++) {
            const struct session *s = root->first[sort][i];
            bool whole = s->before == s->after && s->before;
            null += whole && !s->thread;
            kept += whole && s->thread == (char *)~(uintptr_t)s->before;
            wrong += !whole || (s->thread && s->thread != (char *)~(uintptr_t)s->before);
        }
        printf("%s null=%u kept=%u wrong=%u\n", name[sort], null, kept, wrong);
    }
}

// The typed blocks are freed, and blocks without a type come where they were.
static void reuse(void) {
    struct root *root = pmalloc_get_root(0);
    for (unsigned i = 0; i < COUNT; i++)
        free(root->first[MADE][i]);
    for (unsigned i = 0; i < COUNT; i++) {
        root->first[MADE][i] = malloc(sizeof(struct session));
        fill(root->first[MADE][i]);
    }
}

static void move(void) {
    struct root *root = pmalloc_get_root(0);
    for (unsigned i = 0; i < COUNT; i++) {
        struct session *now = realloc(root->first[MADE][i], 500);
        if (!now || now == root->first[MADE][i])
            fail("realloc");
        fill(now);
        root->first[MADE][i] = now;
    }
}

// As many lines as there is room for, each of two words; then they are free again.
static void full(void) {
    unsigned set = 0;
    while (set < 1000 && pmalloc_transient(1 + set, 64 * set, 1) == 0)
        set++;
    printf("%u %d\n", set, errno == ENOMEM);
    for (unsigned i = 0; i < set; i++)
        if (pmalloc_transient(1 + i, 64 * i + 56, 1) != 0)
            fail("pmalloc_transient");
    for (unsigned i = 0; i < set; i++)
        for (unsigned at = 0; at < 64; at += 8)
            if (pmalloc_transient(1 + i, 64 * i + at, 0) != 0)
                fail("pmalloc_transient");
}

static void declare(int on) {
    if (pmalloc_transient(7, offsetof(struct session, thread), on) != 0)
        printf("%s\n", strerror(errno));
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "declare") == 0)
            declare(1);
        else if (strcmp(argv[i], "undeclare") == 0)
            declare(0);
        else if (strcmp(argv[i], "make") == 0)
            for (unsigned sort = 0; sort < SORTS; sort++)
                make(sort);
        else if (strcmp(argv[i], "look") == 0)
            look();
        else if (strcmp(argv[i], "reuse") == 0)
            reuse();
        else if (strcmp(argv[i], "move") == 0)
            move();
        else if (strcmp(argv[i], "stack") == 0)
            lead_to_stack();
        else if (strcmp(argv[i], "full") == 0)
            full();
        else if (strcmp(argv[i], "commit") == 0 && pmalloc_commit() != 0)
            fail("pmalloc_commit");
        else if (strcmp(argv[i], "wrong") == 0)
            printf("%d %d %d %d\n", pmalloc_transient(0, 8, 1), pmalloc_transient(65536, 8, 1),
                   pmalloc_transient(7, 12, 1), pmalloc_transient(7, 16384, 1));
    fflush(stdout);
    if (strcmp(argv[1], "kill") == 0)
        raise(SIGKILL);
    return 0;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pinned_misuse CASE: what a program can do wrong with elements of a publish. Says what came back.
#include "preload/pmalloc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t *words; // in the heap, and reachable
static uint64_t mine;   // not
static pmalloc_op op[4];

static void answer(const char *what, int got) {
    printf("%s %d %s\n", what, got, got ? strerrorname_np(errno) : "");
}

static void publish(const char *what, size_t n) { answer(what, pmalloc_publish(op, n)); }

// An element, and a copy of it that is used first.
static void twice(unsigned flags, size_t size) {
    void *p = pmalloc_reserve(&op[0], size, 0, flags);
    pmalloc_defer_free(&op[1], p);
    pmalloc_store(&op[2], &words[0], 1);
    pmalloc_op copy[3];
    memcpy(copy, op, sizeof copy);
    answer("first", pmalloc_publish(copy, 3));
    publish("again", 3);
}

static void cancelled(unsigned flags, size_t size) {
    pmalloc_reserve(&op[0], size, 0, flags);
    pmalloc_store(&op[1], &words[0], 1);
    pmalloc_op copy = op[0];
    pmalloc_cancel(&copy, 1);
    publish("after", 2);
}

static void freed(unsigned flags, size_t size) {
    void *p = pmalloc_alloc(size, 0, flags);
    pmalloc_defer_free(&op[0], p);
    pmalloc_store(&op[1], &words[0], 1);
    free(p);
    publish("after", 2);
}

static void used_again(void) {
    pmalloc_reserve(&op[0], 100, 0, PMALLOC_PINNED);
    pmalloc_store(&op[1], &words[0], 7);
    publish("first", 2);
    publish("again", 2); // the elements are empty
    pmalloc_cancel(op, 2);
    printf("%lu\n", (unsigned long)words[0]);
}

static void refused(const char *what) {
    if (!strcmp(what, "flags"))
        answer("block", pmalloc_reserve(&op[0], 10, 0, 0x40) ? 0 : -1);
    if (!strcmp(what, "alignment"))
        answer("block", pmalloc_reserve(&op[0], 10, 24, PMALLOC_PINNED) ? 0 : -1);
    if (!strcmp(what, "unaligned"))
        answer("store", pmalloc_store(&op[0], (char *)words + 3, 1));
    if (!strcmp(what, "slot"))
        answer("store", pmalloc_store_root(&op[0], PMALLOC_ROOT_SLOTS, words));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    unsigned flags = strstr(what, "pinned") ? PMALLOC_PINNED : 0;
    size_t size = strstr(what, "large") ? 50000 : 100;
    words = calloc(8, sizeof *words);
    pmalloc_set_root(0, words);
    refused(what);
    if (strstr(what, "twice"))
        twice(flags, size);
    if (strstr(what, "cancelled"))
        cancelled(flags, size);
    if (strstr(what, "freed"))
        freed(flags, size);
    if (!strcmp(what, "used again"))
        used_again();
    if (!strcmp(what, "foreign")) {
        pmalloc_store(&op[0], &words[0], 1);
        pmalloc_store(&op[1], &mine, 1);
        publish("publish", 2);
    }
    if (!strcmp(what, "none")) {
        memset(op, 0x5a, sizeof op);
        publish("publish", 1);
    }
    free(malloc(10));
    printf("%lu %lu\n", (unsigned long)words[0], (unsigned long)mine);
}

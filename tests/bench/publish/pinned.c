// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pinned NODES [words]: a list of nodes of 64 to 128 bytes, linked by XOR. All of them are pinned;
// "words" lets the collector look for pointers in them. Then it kills itself.
// pinned walk: prints how many nodes the list has.
#include "preload/pmalloc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDE 0xaaaaaaaaaaaaaaaaull // what is kept is no address

static uint64_t hidden(const void *p) { return (uint64_t)(uintptr_t)p ^ HIDE; }

static void walk(const uint64_t *head) {
    uint64_t count = 0, before = 0, at = head ? *head ^ HIDE : 0;
    while (at) {
        uint64_t next = *(const uint64_t *)(uintptr_t)at ^ before ^ HIDE;
        before = at, at = next, count++;
    }
    printf("%lu nodes\n", (unsigned long)count);
}

int main(int argc, char **argv) {
    uint64_t *head = pmalloc_get_root(0), count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    unsigned flags = PMALLOC_PINNED | (argc > 2 ? 0 : PMALLOC_POINTER_FREE);
    if (count == 0) {
        walk(head);
        return 0;
    }
    head = pmalloc_alloc(sizeof *head, 0, PMALLOC_ZERO);
    uint64_t random = 1, *last = NULL, before = 0;
    *head = HIDE;
    pmalloc_set_root(0, head);
    for (uint64_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t *n = pmalloc_alloc(64 + random % 65, 0, flags);
        if (!n)
            return 1;
        if (last)
            *last = before ^ hidden(n);
        else
            *head = hidden(n);
        *n = (uint64_t)(uintptr_t)last ^ HIDE;
        before = (uint64_t)(uintptr_t)last, last = n;
    }
    raise(SIGKILL);
}

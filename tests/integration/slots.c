// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that cooperates: its data hang on root slots. `slots [-k]` counts up in slots 0 and 511.
#include "core/pmalloc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct count {
    long number;
    struct count *previous;
};

static long add(unsigned slot) {
    struct count *old = pmalloc_get_root(slot), *fresh = malloc(sizeof *fresh);
    if (!fresh)
        exit(4);
    fresh->number = old ? old->number + 1 : 1;
    fresh->previous = old;
    if (pmalloc_set_root(slot, fresh) != 0) {
        int why = errno;
        fprintf(stderr, "pmalloc_set_root: %s\n", strerror(why));
        exit(why == ENOTSUP ? 5 : 6);
    }
    long seen = 0;
    for (const struct count *c = fresh; c; c = c->previous)
        seen++;
    return seen == fresh->number ? seen : -1;
}

int main(int argc, char **argv) {
    if (pmalloc_set_root(PMALLOC_ROOT_SLOTS, NULL) != -1 || errno != EINVAL ||
        pmalloc_get_root(PMALLOC_ROOT_SLOTS))
        return 7;
    if (argc > 1 && !strcmp(argv[1], "empty")) {
        pmalloc_set_root(0, NULL);
        pmalloc_set_root(PMALLOC_ROOT_SLOTS - 1, NULL);
        return 0;
    }
    printf("%d %s %ld %ld\n", pmalloc_is_persistent(), pmalloc_heap_path(), add(0),
           add(PMALLOC_ROOT_SLOTS - 1));
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "-k"))
        raise(SIGKILL);
    return 0;
}

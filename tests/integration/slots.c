// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that cooperates: its data hang on root slots. `slots [-k]` counts in slots 0 and 511;
// -k ends it by SIGKILL. `slots cancel` sets a slot in a thread that has been cancelled already.
#include "preload/pmalloc.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void *set_cancelled(void *block) {
    pthread_cancel(pthread_self());
    pmalloc_set_root(1, block);
    pthread_testcancel();
    return NULL;
}

// A cancelled thread still sets its slot, and leaves no lock held.
static int test_cancel(void) {
    pthread_t thread;
    void *end = NULL, *block = malloc(1);
    if (pthread_create(&thread, NULL, set_cancelled, block) != 0 ||
        pthread_join(thread, &end) != 0 || end != PTHREAD_CANCELED)
        return 8;
    alarm(20); // if a lock is held, the next call waits for ever
    return pmalloc_get_root(1) == block && pmalloc_set_root(1, NULL) == 0 ? 0 : 9;
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
    if (argc > 1 && !strcmp(argv[1], "cancel"))
        return test_cancel();
    printf("%d %s %ld %ld\n", pmalloc_is_persistent(), pmalloc_heap_path(), add(0),
           add(PMALLOC_ROOT_SLOTS - 1));
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "-k"))
        raise(SIGKILL);
    return 0;
}

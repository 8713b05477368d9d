// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap for a program that counts: below a fresh directory in shared memory, with flushes by line.
#ifndef PM_TEMPORARY_HEAP_H
#define PM_TEMPORARY_HEAP_H

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char temporary_root[64];

// Names the heap to the allocator, before its first request.
static inline bool temporary_heap_name(const char *program) {
    char heap[80];
    snprintf(temporary_root, sizeof temporary_root, "/dev/shm/pmalloc-%s-XXXXXX", program);
    if (!mkdtemp(temporary_root)) {
        perror(temporary_root);
        return false;
    }
    snprintf(heap, sizeof heap, "%s/heap", temporary_root);
    setenv("PMALLOC_HEAP", heap, 1);
    setenv("PMALLOC_PERSIST", "line", 1);
    return true;
}

static inline int temporary_remove_one(const char *path, const struct stat *st, int flag,
                                       struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline bool temporary_heap_remove(void) {
    return nftw(temporary_root, temporary_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

#endif

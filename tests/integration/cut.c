// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded before all others. It cuts a file just after that has been mapped, so
// that its pages are there no more when they are looked at: a SIGBUS, as a bad block is one.
//
//   CUT_NAME=NAME   the file that is cut: the end of its path
//   CUT_AT=BYTES    what is left of it
//   CUT_SKIP=N      so many mappings of it come before (default: none)
#include <stdlib.h>
#include <sys/mman.h>

#include "layer.h"
#include "raw_call.h"

static void cut(int fd) {
    static int seen;
    char path[4096];
    if (ends_in(fd, variable("CUT_NAME"), path) && seen++ >= atoi(variable("CUT_SKIP")))
        syscall(SYS_truncate, path, atol(variable("CUT_AT")));
}

void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    long map = done(raw(SYS_mmap, (long)at, (long)length, prot, flags, fd, offset));
    if (map != -1 && fd >= 0 && !(flags & MAP_ANONYMOUS))
        cut(fd);
    return (void *)map;
}

// Only because the library calls it through a layer (SEEN_CALLS in the Makefile).
int madvise(void *at, size_t length, int advice) {
    return (int)done(raw(SYS_madvise, (long)at, (long)length, advice, 0, 0, 0));
}

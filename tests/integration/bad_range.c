// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded: the disk has a bad range. From some byte of a file on, pread() fails
// with EIO, or nobody can read the pages of a private mapping outside of the heap.
//
//   BAD_NAME=NAME   the file: the end of its path
//   BAD_AT=BYTES    from there on
//   BAD_HOW=HOW     pread or mapped
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "layer.h"
#include "raw_call.h"

enum { HEAP = 0x40 }; // its first TiB

static bool is_bad(int fd) {
    char path[4096];
    return ends_in(fd, variable("BAD_NAME"), path);
}

static uint64_t bad_from(void) { return strtoull(variable("BAD_AT"), NULL, 10); }

ssize_t pread(int fd, void *to, size_t len, off_t at) {
    if (variable("BAD_HOW")[0] == 'p' && is_bad(fd) && (uint64_t)at + len > bad_from()) {
        errno = EIO;
        return -1;
    }
    return done(raw(SYS_pread64, fd, (long)to, (long)len, at, 0, 0));
}

void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    long map = done(raw(SYS_mmap, (long)at, (long)length, prot, flags, fd, offset));
    uint64_t bad = bad_from(), end = (uint64_t)offset + length;
    if (map != -1 && fd >= 0 && flags & MAP_PRIVATE && (uintptr_t)at >> 40 != HEAP &&
        variable("BAD_HOW")[0] == 'm' && is_bad(fd) && bad < end) {
        uint64_t from = bad > (uint64_t)offset ? (bad - (uint64_t)offset) & ~4095ull : 0;
        long empty = raw(SYS_memfd_create, (long)"empty", 0, 0, 0, 0, 0); // its pages are a SIGBUS
        raw(SYS_mmap, map + (long)from, (long)(length - from), prot, flags | MAP_FIXED, empty, 0);
        raw(SYS_close, empty, 0, 0, 0, 0, 0);
    }
    return (void *)map;
}

// Only because the library calls it through a layer (SEEN_CALLS in the Makefile).
long syscall(long number, ...) {
    long a[6];
    RAW_ARGUMENTS(a, number);
    return done(raw(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

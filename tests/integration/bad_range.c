// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded: the disk has a bad range. From some byte of a file on, pread() fails
// with EIO, or what the kernel is to bring into a private mapping (MADV_POPULATE_*) with EFAULT.
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

enum { POPULATE_READ = 22, POPULATE_WRITE };

static struct mapping {
    uintptr_t from, to;
    uint64_t at;
} mapped[8];
static unsigned count;

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
    if (map != -1 && fd >= 0 && flags & MAP_PRIVATE && is_bad(fd) && count < 8)
        mapped[count++] = (struct mapping){(uintptr_t)map, (uintptr_t)map + length, offset};
    return (void *)map;
}

int madvise(void *at, size_t length, int advice) {
    bool asks = advice == POPULATE_READ || advice == POPULATE_WRITE;
    for (unsigned i = 0; i < count && asks && variable("BAD_HOW")[0] == 'm'; i++) {
        const struct mapping *m = &mapped[i];
        if ((uintptr_t)at >= m->from && (uintptr_t)at < m->to &&
            (uintptr_t)at - m->from + m->at + length > bad_from()) {
            errno = EFAULT;
            return -1;
        }
    }
    return (int)done(raw(SYS_madvise, (long)at, (long)length, advice, 0, 0, 0));
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded: the disk has a bad range. pread() of a file fails with EIO from
// some byte on.
//
//   BAD_NAME=NAME   the file: the end of its path
//   BAD_AT=BYTES    from there on
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pread(int fd, void *to, size_t len, off_t at) {
    char link[64], path[4096];
    const char *name = getenv("BAD_NAME"), *from = getenv("BAD_AT");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t end = name ? strlen(name) : 0;
    if (from && end && length >= (ssize_t)end && memcmp(path + length - end, name, end) == 0 &&
        at + (off_t)len > atol(from)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, len, at);
}

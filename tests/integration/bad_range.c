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
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { POPULATE_READ = 22, POPULATE_WRITE };

static struct mapping {
    uintptr_t from, to;
    uint64_t at;
} mapped[8];
static unsigned count;

// The environment as the kernel gave it: the first mappings come before libc is ready.
static const char *variable(const char *name) {
    static char text[65536];
    static long have;
    if (!have) {
        long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/environ", 0), got;
        while ((got = syscall(SYS_read, fd, text + have, sizeof text - 1 - (size_t)have)) > 0)
            have += got;
        syscall(SYS_close, fd);
    }
    for (const char *at = text; at < text + have; at += strlen(at) + 1)
        if (strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '=')
            return at + strlen(name) + 1;
    return "";
}

static bool is_bad(int fd) {
    char link[64], path[4096];
    const char *name = variable("BAD_NAME");
    size_t end = strlen(name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path);
    return end && length >= (long)end && memcmp(path + length - end, name, end) == 0;
}

static uint64_t bad_from(void) { return strtoull(variable("BAD_AT"), NULL, 10); }

ssize_t pread(int fd, void *to, size_t len, off_t at) {
    if (variable("BAD_HOW")[0] == 'p' && is_bad(fd) && (uint64_t)at + len > bad_from()) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, len, at);
}

void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    long map = syscall(SYS_mmap, at, length, prot, flags, fd, offset);
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
    return (int)syscall(SYS_madvise, at, length, advice);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded before all others. It cuts a file just after that has been mapped, so
// that its pages are there no more when they are looked at: a SIGBUS, as a bad block is one.
//
//   CUT_NAME=NAME   the file that is cut: the end of its path
//   CUT_AT=BYTES    what is left of it
//   CUT_SKIP=N      so many mappings of it come before (default: none)
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// The environment as the kernel gave it: the first mappings come before libc is ready.
static const char *variable(const char *name) {
    static char text[65536];
    static long have;
    if (!have) {
        long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/environ", O_RDONLY | O_CLOEXEC), got;
        while ((got = syscall(SYS_read, fd, text + have, sizeof text - 1 - (size_t)have)) > 0)
            have += got;
        syscall(SYS_close, fd);
    }
    for (const char *at = text; at < text + have; at += strlen(at) + 1)
        if (strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '=')
            return at + strlen(name) + 1;
    return "";
}

static void cut(int fd) {
    static int seen;
    char link[64], path[4096];
    const char *name = variable("CUT_NAME");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    size_t end = strlen(name);
    if (!end || length < (long)end || memcmp(path + length - end, name, end) != 0 ||
        seen++ < atoi(variable("CUT_SKIP")))
        return;
    path[length] = '\0';
    syscall(SYS_truncate, path, atol(variable("CUT_AT")));
}

void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    long map = syscall(SYS_mmap, at, length, prot, flags, fd, offset);
    if (map != -1 && fd >= 0 && !(flags & MAP_ANONYMOUS))
        cut(fd);
    return (void *)map;
}

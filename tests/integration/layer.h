// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What libraries need that are preloaded under a program of ours and change some of its calls. The
// first of those come before libc is ready, so all of this asks the kernel itself.
#ifndef LAYER_H
#define LAYER_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// The environment as the kernel gave it. "": the variable is not set.
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

// Whether the descriptor's file has a path that ends so; "": none has.
static inline bool ends_in(int fd, const char *name, char path[4096]) {
    char link[64];
    size_t end = strlen(name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    path[length < 0 ? 0 : length] = '\0';
    return end && length >= (long)end && memcmp(path + length - end, name, end) == 0;
}

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "kernel_stores.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os_file.h"

// A file for direct I/O, an io_uring (with or without registered buffers), or a device that does
// DMA on behalf of the process.
static bool is_such(const char *number) {
    static const char *const target[] = {"anon_inode:[io_uring]", "/dev/infiniband/", "/dev/vfio/"};
    char path[40], link[64];
    int flags = fcntl(atoi(number), F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT))
        return true;
    snprintf(path, sizeof path, "/proc/self/fd/%s", number);
    ssize_t len = readlink(path, link, sizeof link - 1);
    if (len <= 0)
        return false;
    link[len] = '\0';
    for (size_t i = 0; i < sizeof target / sizeof target[0]; i++)
        if (strncmp(link, target[i], strlen(target[i])) == 0)
            return true;
    return false;
}

static bool none_yet(const char *number, void *arg) {
    bool *found = arg;
    *found = is_such(number);
    return !*found;
}

bool pm_kernel_stores(void) {
    bool found = false;
    int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return true;
    bool listed = pm_os_each_name(fd, none_yet, &found);
    close(fd);
    return found || !listed;
}

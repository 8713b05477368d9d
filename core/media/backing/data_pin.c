// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "data_pin.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/os_file.h"
#include "file_space.h"
#include "fixed.h"

static bool is_data_of(const struct pm_shard *s, int fd) {
    return pm_os_fd_is(fd, s->data.dev, s->data.ino);
}

// Small stacks have no room for a path. Where there is no /proc, or the program has closed the
// descriptor.
static __attribute__((noinline)) int open_for_reading(const struct pm_file *file) {
    char path[sizeof pm_heap.dir + 32];
    if (file->length)
        snprintf(path, sizeof path, "%s", pm_medium_of(file)->path);
    else
        snprintf(path, sizeof path, "%s/%s", pm_heap.dir, file->name);
    return open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

int pm_shard_pin(struct pm_shard *s) {
    char path[48];
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", s->data.fd);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool good = is_data_of(s, fd);
    if (!good) {
        if (fd >= 0)
            close(fd);
        fd = open_for_reading(&s->data);
        good = is_data_of(s, fd);
    }
    // The length of a fixed medium is nobody's to change, and this lock would be the heap's.
    if (good && (s->data.length || flock(fd, LOCK_SH | LOCK_NB) == 0))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool pm_shard_cut_file(const struct pm_shard *s, uint64_t size) {
    int fd = s->data.fd;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    bool good = pm_space_set_length(fd, s->data.size, size);
    flock(fd, LOCK_UN);
    return good;
}

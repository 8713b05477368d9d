// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dir_held.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "fixed.h"
#include "media/heap.h"

static dev_t dir_dev;
static ino_t dir_ino;

void pm_dir_note(const struct stat *st) {
    dir_dev = st->st_dev;
    dir_ino = st->st_ino;
}

static bool is_our_dir(int fd) { return pm_os_fd_is(fd, dir_dev, dir_ino); }

bool pm_dir_stat(struct stat *st) {
    return pm_heap.dir_fd >= 0 && fstat(pm_heap.dir_fd, st) == 0 && st->st_dev == dir_dev &&
           st->st_ino == dir_ino;
}

void pm_dir_adopt(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0)
        pm_dir_note(&st);
    pm_heap.dir_fd = fd;
}

bool pm_dir_is_held(void) { return is_our_dir(pm_heap.dir_fd); }

bool pm_dir_ready(void) {
    if (pm_fixed_is_open() || pm_heap.nameless)
        return false;
    if (is_our_dir(pm_heap.dir_fd))
        return true;
    int fd = open(pm_heap.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!is_our_dir(fd)) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    pm_heap.dir_fd = pm_os_fd_high(fd);
    return true;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A medium that a test can make full: then fallocate allocates nothing. Punching always works.
#ifndef PM_FULL_MEDIUM_H
#define PM_FULL_MEDIUM_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool full;
static unsigned punches, allocations;

int fallocate(int fd, int mode, off_t offset, off_t len) {
    bool punch = mode & FALLOC_FL_PUNCH_HOLE;
    punches += punch;
    allocations += !punch;
    if (full && !punch) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

#endif

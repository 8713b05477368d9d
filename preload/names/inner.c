// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls that this library makes itself, of names that waits.c defines. The linker leads them here
// (--wrap in the Makefile), so they are never recorded as calls of the program's.
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

ssize_t __wrap_read(int fd, void *to, size_t len);
ssize_t __wrap_read(int fd, void *to, size_t len) { return syscall(SYS_read, fd, to, len); }

ssize_t __wrap_write(int fd, const void *from, size_t len);
ssize_t __wrap_write(int fd, const void *from, size_t len) {
    return syscall(SYS_write, fd, from, len);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *rest);
int __wrap_nanosleep(const struct timespec *time, struct timespec *rest) {
    return (int)syscall(SYS_nanosleep, time, rest);
}

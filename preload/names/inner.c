// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls that this library makes itself, of names that other files here define. The linker
// leads them here (--wrap in the Makefile), so they are never recorded as calls of the program's.
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "threads/action.h"
#include "threads/threads.h"

#define ERRORS 4096ul // the kernel returns an error as a number from -4095 to -1

// Callers know the declaration of unistd.h. Arguments that they do not give are whatever the
// registers hold. The section tells hold.c that a thread is in a call here, as it would be in libc.
__attribute__((section("pm_inner_calls"))) long __wrap_syscall(long number, long a, long b, long c,
                                                               long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    long result = pm_bare_call6(number, a, b, c, d, e, f);
    if ((unsigned long)result <= -ERRORS)
        return result;
    errno = (int)-result;
    return -1;
}

// A handler of the library's own is not postponed, and stays on the stack where it arrives.
int __wrap_sigaction(int number, const struct sigaction *to, struct sigaction *was);
int __wrap_sigaction(int number, const struct sigaction *to, struct sigaction *was) {
    struct pm_action action = {0}, before;
    if (to)
        action = (struct pm_action){
            to->sa_sigaction, (unsigned long)(unsigned)to->sa_flags | PM_SA_RESTORER,
            pm_threads_return, *(const uint64_t *)(const void *)&to->sa_mask};
    long result = pm_action_set(number, to ? &action : NULL, &before);
    if (result == 0 && was) {
        *was = (struct sigaction){.sa_sigaction = before.handler, .sa_flags = (int)before.flags};
        memcpy(&was->sa_mask, &before.mask, sizeof before.mask);
    }
    errno = result < 0 ? (int)-result : errno;
    return result < 0 ? -1 : 0;
}

ssize_t __wrap_read(int fd, void *to, size_t len);
ssize_t __wrap_read(int fd, void *to, size_t len) { return syscall(SYS_read, fd, to, len); }

ssize_t __wrap_write(int fd, const void *from, size_t len);
ssize_t __wrap_write(int fd, const void *from, size_t len) {
    return syscall(SYS_write, fd, from, len);
}

int __wrap_close(int fd);
int __wrap_close(int fd) { return (int)syscall(SYS_close, fd); }

ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at) {
    return syscall(SYS_pwrite64, fd, from, len, at);
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd) { return (int)syscall(SYS_fsync, fd); }

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) { return (int)syscall(SYS_fdatasync, fd); }

int __wrap_syncfs(int fd);
int __wrap_syncfs(int fd) { return (int)syscall(SYS_syncfs, fd); }

int __wrap_msync(void *at, size_t len, int flags);
int __wrap_msync(void *at, size_t len, int flags) {
    return (int)syscall(SYS_msync, at, len, flags);
}

int __wrap_kill(pid_t to, int number);
int __wrap_kill(pid_t to, int number) { return (int)syscall(SYS_kill, to, number); }

int __wrap_nanosleep(const struct timespec *time, struct timespec *rest);
int __wrap_nanosleep(const struct timespec *time, struct timespec *rest) {
    return (int)syscall(SYS_nanosleep, time, rest);
}

void *__wrap_mmap(void *at, size_t len, int access, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int access, int flags, int fd, off_t offset) {
    return (void *)syscall(SYS_mmap, at, len, access, flags, fd, offset);
}

int __wrap_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len) { return (int)syscall(SYS_munmap, at, len); }

int __wrap_madvise(void *at, size_t len, int advice);
int __wrap_madvise(void *at, size_t len, int advice) {
    return (int)syscall(SYS_madvise, at, len, advice);
}

int __wrap_mprotect(void *at, size_t len, int access);
int __wrap_mprotect(void *at, size_t len, int access) {
    return (int)syscall(SYS_mprotect, at, len, access);
}

void *__wrap_mremap(void *from, size_t old, size_t len, int flags, void *to);
void *__wrap_mremap(void *from, size_t old, size_t len, int flags, void *to) {
    return (void *)syscall(SYS_mremap, from, old, len, flags, to);
}

// From 2.41 on glibc's own makes memory for the kernel's random numbers, by four calls more.
ssize_t __wrap_getrandom(void *to, size_t len, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t len, unsigned flags) {
    return syscall(SYS_getrandom, to, len, flags);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded beside PMAlloc. It kills the program at one of the steps by which a
// commit changes files: a write (before it, or when half is done), a sync, a length, a hole. Steps
// count from when the journal is there.
//
//   stop_at=N   killed at the N-th step, from 1 on; 0 or unset: never
//   stop_log=FILE   at the end of the process: how many steps there were
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long steps, last;

#define REAL(name) ((__typeof(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("stop_at");
    real_pwrite = REAL(pwrite);
    real_syscall = REAL(syscall);
    last = at ? strtoul(at, NULL, 10) : 0;
}

__attribute__((destructor)) static void report(void) {
    const char *log = getenv("stop_log");
    int fd = log ? open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0) {
        dprintf(fd, "%lu\n", steps);
        close(fd);
    }
}

static int counts;

static int is_now(void) { return counts && ++steps == last; }

int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    counts |= strcmp(path, "journal") == 0 && flags & O_CREAT;
    return REAL(openat)(dir, path, flags, mode);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at) {
    if (!real_pwrite)
        begin();
    if (is_now())
        raise(SIGKILL);
    if (is_now()) {
        real_pwrite(fd, data, len / 2, at);
        raise(SIGKILL);
    }
    return real_pwrite(fd, data, len, at);
}

long syscall(long number, ...) {
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (!real_syscall)
        begin();
    int changes = number == SYS_fdatasync || number == SYS_fallocate || number == SYS_ftruncate;
    if (changes && is_now())
        raise(SIGKILL);
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#define _GNU_SOURCE
#include "nameless_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int fail_at, die_at;
volatile int interrupt_at;

static int fails(void) {
    if (die_at && --die_at == 0)
        raise(SIGKILL);
    if (!fail_at || --fail_at)
        return 0;
    errno = ENOSPC;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int linkat(int from, const char *old, int to, const char *new, int flags) {
    return fails() ? -1 : REAL(linkat)(from, old, to, new, flags);
}

int renameat(int from, const char *old, int to, const char *new) {
    return fails() ? -1 : REAL(renameat)(from, old, to, new);
}

int fallocate(int fd, int mode, off_t from, off_t len) {
    if (interrupt_at && --interrupt_at == 0)
        raise(SIGUSR1);
    return REAL(fallocate)(fd, mode, from, len);
}

int mkdir(const char *path, mode_t mode) { return fails() ? -1 : REAL(mkdir)(path, mode); }

int flock(int fd, int operation);
int flock(int fd, int operation) { return fails() ? -1 : REAL(flock)(fd, operation); }

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return fails() ? -1 : REAL(open)(path, flags, mode);
}

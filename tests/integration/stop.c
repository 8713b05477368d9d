// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded into a tool. It counts the calls that change files, and kills the
// tool at one of them. A write counts twice: the tool is killed before it, or when half is done.
//
//   STOP_AT=N     killed at the N-th step, from 1 on
//   STOP_LOG=FILE at the end of the process: how many steps there were, and the bytes written
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned long steps, written;

#define REAL(name) ((__typeof(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

static int is_now(void) {
    const char *at = getenv("STOP_AT");
    return at && ++steps == strtoul(at, NULL, 10);
}
static void step(void) {
    if (!getenv("STOP_AT"))
        steps++;
    else if (is_now())
        raise(SIGKILL);
}

__attribute__((destructor)) static void report(void) {
    const char *log = getenv("STOP_LOG");
    FILE *out = log ? fopen(log, "w") : NULL;
    if (out) {
        fprintf(out, "%lu %lu\n", steps, written);
        fclose(out);
    }
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at) {
    step();
    if (len <= 8) { // an aligned word is written whole
    } else if (!getenv("STOP_AT")) {
        steps++;
    } else if (is_now()) {
        REAL(pwrite)(fd, data, len / 2, at);
        raise(SIGKILL);
    }
    written += len;
    return REAL(pwrite)(fd, data, len, at);
}

#define STEP(type, name, parameters, arguments)                                                    \
    type name parameters {                                                                         \
        step();                                                                                    \
        return REAL(name) arguments;                                                               \
    }
STEP(int, ftruncate, (int fd, off_t len), (fd, len))
STEP(int, fallocate, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len))
STEP(int, fsync, (int fd), (fd))
STEP(int, mkdir, (const char *path, mode_t mode), (path, mode))
STEP(int, rmdir, (const char *path), (path))
STEP(int, unlinkat, (int fd, const char *name, int flags), (fd, name, flags))
STEP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
STEP(ssize_t, copy_file_range,
     (int from, off64_t *in, int to, off64_t *out, size_t len, unsigned flags),
     (from, in, to, out, len, flags))

int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT)
        step();
    return REAL(openat)(dir, path, flags, mode);
}

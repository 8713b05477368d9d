// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded into a tool. It counts the calls that change files, and kills the
// tool at one of them. A write counts twice: the tool is killed before it, or when half is done.
//
//   STOP_AT=N     killed at the N-th step, from 1 on
//   STOP_LOG=FILE at the end of the process: how many steps there were, and the bytes written
//   STOP_OPS=FILE each change, and each fsync, for a simulated power failure: a line with the name
//                 of the call, the file's inode, two numbers and names; after a write its bytes
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

// ---- what was done ------------------------------------------------------------------------------

static unsigned long inode(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? (unsigned long)st.st_ino : 0;
}

static void note(const char *call, int fd, long a, long b, const char *names, const void *data) {
    static FILE *out;
    if (!getenv("STOP_OPS"))
        return;
    if (!out)
        out = fopen(getenv("STOP_OPS"), "w");
    fprintf(out, "%s %lu %ld %ld %s\n", call, inode(fd), a, b, names);
    if (data)
        fwrite(data, 1, (size_t)b, out);
    fflush(out);
}

// ---- calls --------------------------------------------------------------------------------------

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
    note("write", fd, at, (long)len, "", data);
    return REAL(pwrite)(fd, data, len, at);
}

int ftruncate(int fd, off_t len) {
    step();
    note("length", fd, len, 0, "", NULL);
    return REAL(ftruncate)(fd, len);
}

int fallocate(int fd, int mode, off_t at, off_t len) {
    step();
    note("hole", fd, at, len, "", NULL);
    return REAL(fallocate)(fd, mode, at, len);
}

int fsync(int fd) {
    step();
    note("fsync", fd, 0, 0, "", NULL);
    return REAL(fsync)(fd);
}

int mkdir(const char *path, mode_t mode) {
    step();
    return REAL(mkdir)(path, mode);
}

int unlinkat(int dir, const char *name, int flags) {
    step();
    note("unlink", dir, 0, 0, name, NULL);
    return REAL(unlinkat)(dir, name, flags);
}

int renameat(int a, const char *from, int b, const char *to) {
    char names[512];
    step();
    snprintf(names, sizeof names, "%s %s", from, to);
    note("rename", a, 0, 0, names, NULL);
    return REAL(renameat)(a, from, b, to);
}

ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t len, unsigned flags) {
    step();
    off_t at = *out;
    ssize_t done = REAL(copy_file_range)(from, in, to, out, len, flags);
    char *copy = done > 0 ? malloc((size_t)done) : NULL;
    if (copy && pread(to, copy, (size_t)done, at) == done)
        note("write", to, at, done, "", copy);
    free(copy);
    return done;
}

int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT)
        step();
    int fd = REAL(openat)(dir, path, flags, mode);
    if (flags & O_CREAT)
        note("make", fd, flags & O_TRUNC ? 1 : 0, 0, path, NULL);
    return fd;
}

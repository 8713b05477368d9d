// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The recorder wraps these system calls (ld --wrap). What they change in the heap's files is
// durable at once and in order. Before each of them the power may fail. The scenario sets the
// clock.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "image.h"
#include "media.h"
#include "record.h"
#include "schedule.h"

#define HERE ((uint64_t)(uintptr_t)__builtin_return_address(0))
#define WRAP(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

// Records that a call has changed the length or the holes of a file.
static void changed(int fd, int file) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return;
    world->data_version++;
    if (file >= F_DATA) {
        world->data_size[file - F_DATA] = (uint64_t)st.st_size;
        return;
    }
    struct shadow *s = &world->shadow[file];
    uint64_t size = shadow_size((unsigned)file, (uint64_t)st.st_size);
    if (size < s->size)
        media_punch((unsigned)file, size, s->size);
    s->exists = true;
    s->size = size;
}

WRAP(int, fallocate, int fd, int mode, off_t offset, off_t len) {
    int file = record_file_of(fd);
    if ((file == F_LOG || file == F_LOG_1) && record_full_log) {
        record_full_log--;
        errno = ENOSPC;
        return -1;
    }
    if (file >= 0)
        image_point(SITE_FILE_OP, HERE);
    int status = __real_fallocate(fd, mode, offset, len);
    if (status == 0 && file >= 0) {
        if (file < F_DATA && (mode & FALLOC_FL_PUNCH_HOLE))
            media_punch((unsigned)file, (uint64_t)offset, (uint64_t)(offset + len));
        changed(fd, file);
    }
    return status;
}

// The tool reads a heap's files into the medium. The kernel's stores are like those of the library.
WRAP(ssize_t, pread, int fd, void *to, size_t len, off_t at) {
    ssize_t got = __real_pread(fd, to, len, at);
    if (got > 0)
        record_stored(to, (size_t)got);
    return got;
}

// It may fill a superblock that is mapped.
WRAP(ssize_t, getrandom, void *to, size_t len, unsigned flags) {
    ssize_t got = __real_getrandom(to, len, flags);
    if (got > 0)
        record_stored(to, (size_t)got);
    return got;
}

WRAP(int, ftruncate, int fd, off_t size) {
    int file = record_file_of(fd);
    if (file >= 0)
        image_point(SITE_FILE_OP, HERE);
    int status = __real_ftruncate(fd, size);
    if (status == 0 && file >= 0)
        changed(fd, file);
    return status;
}

WRAP(ssize_t, pwrite, int fd, const void *data, size_t len, off_t at) {
    int file = record_file_of(fd);
    if (file >= 0)
        image_point(SITE_FILE_OP, HERE);
    ssize_t put = __real_pwrite(fd, data, len, at);
    if (file >= 0)
        record_rescan();
    return put;
}

WRAP(ssize_t, write, int fd, const void *data, size_t len) {
    int file = record_file_of(fd);
    if (file >= 0)
        image_point(SITE_FILE_OP, HERE);
    ssize_t put = __real_write(fd, data, len);
    if (file >= 0)
        record_rescan();
    return put;
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? (mode_t)va_arg(list, int) : 0;
    va_end(list);
    if (flags & O_CREAT)
        image_point(SITE_FILE_OP, HERE);
    int fd = __real_openat(dir, path, flags, mode);
    if (fd >= 0 && flags & O_CREAT)
        record_rescan();
    return fd;
}

WRAP(int, renameat, int from_dir, const char *from, int to_dir, const char *to) {
    image_point(SITE_FILE_OP, HERE);
    if (image_mutated(MUTATE_DROP_RENAME, HERE)) {
        world->tainted++; // for good: every later image differs
        return 0;
    }
    int status = __real_renameat(from_dir, from, to_dir, to);
    record_rescan();
    return status;
}

WRAP(int, unlinkat, int dir, const char *path, int flags) {
    image_point(SITE_FILE_OP, HERE);
    int status = __real_unlinkat(dir, path, flags);
    record_rescan();
    return status;
}

WRAP(void *, mmap, void *at, size_t len, int prot, int flags, int fd, off_t offset) {
    void *map = __real_mmap(at, len, prot, flags, fd, offset);
    if (map != MAP_FAILED && fd >= 0 && (prot & PROT_WRITE) && (flags & MAP_SHARED))
        record_map(map, len, fd, (uint64_t)offset);
    return map;
}

WRAP(int, munmap, void *at, size_t len) {
    record_unmap(at);
    return __real_munmap(at, len);
}

WRAP(uint64_t, pm_os_now_ms, void) { return record_clock_ms; }

// Threads run one at a time. A thread that would sleep on a futex hands over instead, and tries
// again when its turn comes.
WRAP(long, syscall, long number, long a, long b, long c, long d, long e, long f) {
    if (number != SYS_futex)
        return __real_syscall(number, a, b, c, d, e, f);
    if ((b & FUTEX_CMD_MASK) == FUTEX_WAIT)
        schedule_yield();
    return 0;
}

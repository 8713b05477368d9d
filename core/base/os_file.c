// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "os_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cancel.h"

#ifndef STATX_BTIME // musl has no struct statx before 1.2.5, and then the kernel's header clashes
#include <linux/stat.h>
#endif

// libc's function is a cancellation point, and looks at its data of the thread. A thread that libc
// does not know makes the call directly.
static long write_once(int fd, const void *data, size_t len, uint64_t at) {
    return pm_cancel_asynchronous ? syscall(SYS_pwrite64, fd, data, len, at)
                                  : pwrite(fd, data, len, (off_t)at);
}

bool pm_os_write_all(int fd, const void *data, size_t len, uint64_t at) {
    for (const char *p = data; len;) {
        long put = write_once(fd, p, len, at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        p += put;
        len -= (size_t)put;
        at += (uint64_t)put;
    }
    return true;
}

ssize_t pm_os_read_at(int fd, void *to, size_t len, uint64_t at) {
    size_t have = 0;
    while (have < len) {
        ssize_t got = pread(fd, (char *)to + have, len - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

bool pm_os_read_all(int fd, void *to, size_t len, uint64_t at) {
    ssize_t got = pm_os_read_at(fd, to, len, at);
    if (got >= 0 && (size_t)got < len)
        errno = EIO;
    return got == (ssize_t)len;
}

bool pm_os_write_anew(int fd, const void *data, size_t len, uint64_t at) {
    long flags = syscall(SYS_fcntl, fd, F_GETFL);
    bool aligned = (((uintptr_t)data | len | at) & 4095) == 0;
    if (flags < 0 || !aligned || syscall(SYS_fcntl, fd, F_SETFL, flags | O_DIRECT) != 0)
        return pm_os_write_all(fd, data, len, at);
    bool good = pm_os_write_all(fd, data, len, at);
    int saved = errno;
    syscall(SYS_fcntl, fd, F_SETFL, flags);
    if (good)
        return true;
    // Linux has dropped the pages before it tried, and memory alone may have had them.
    bool kept = pm_os_write_all(fd, data, len, at);
    errno = kept && saved == EINVAL ? errno : saved;
    return kept && saved == EINVAL;
}

void pm_os_forget_pages(int fd) {
    int saved = errno;
    syscall(SYS_fdatasync, fd);
    syscall(SYS_fadvise64, fd, 0, 0, POSIX_FADV_DONTNEED);
    errno = saved;
}

_Atomic bool pm_os_fd_by_statx;

// False: it cannot be asked that way.
static bool ask_statx(int fd, uint64_t dev, uint64_t ino, bool *same) {
    struct statx found;
    if (!atomic_load_explicit(&pm_os_fd_by_statx, memory_order_relaxed))
        return false;
    bool good = syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &found) == 0;
    *same =
        good && makedev(found.stx_dev_major, found.stx_dev_minor) == dev && found.stx_ino == ino;
    return good || errno == EBADF;
}

bool pm_os_fd_is(int fd, uint64_t dev, uint64_t ino) {
    struct stat st;
    bool same = false;
    if (fd < 0 || ask_statx(fd, dev, ino, &same))
        return same;
    return fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

bool pm_os_descriptors_shared;

void pm_os_close(int fd) {
    if (!pm_os_descriptors_shared)
        close(fd);
}

bool pm_os_fd_at_path(int fd, const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && pm_os_fd_is(fd, st.st_dev, st.st_ino);
}

enum pm_there pm_os_there(int dir_fd, const char *name) {
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PM_IS_THERE;
    return errno == ENOENT ? PM_NOT_THERE : PM_CANNOT_TELL;
}

bool pm_os_sync_parent(const char *path) {
    char parent[4096];
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    while (len && path[len - 1] != '/')
        len--;
    if (len + 2 > sizeof parent) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(parent, path, len);
    memcpy(parent + len, ".", 2);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES || errno == EPERM;
    bool good = fsync(fd) == 0;
    int saved = errno;
    close(fd);
    errno = saved;
    return good;
}

bool pm_os_is_forbidden(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

// One call says all. Where a sandbox forbids it, when the file was made is not known.
bool pm_os_file_id(int fd, struct pm_os_file_id *out) {
    struct statx found;
    struct stat st;
    *out = (struct pm_os_file_id){0};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_BTIME, &found) ==
        0) {
        if (!S_ISREG(found.stx_mode))
            return true;
        out->ino = found.stx_ino;
        if (found.stx_mask & STATX_BTIME) {
            out->birth = (uint64_t)found.stx_btime.tv_sec;
            out->birth_ns = found.stx_btime.tv_nsec;
        }
        return true;
    }
    if (!pm_os_is_forbidden(errno) || fstat(fd, &st) != 0)
        return false;
    out->ino = S_ISREG(st.st_mode) ? st.st_ino : 0;
    return true;
}

uint64_t pm_os_fs_type(int fd) {
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 ? (uint64_t)fs.f_type : 0;
}

bool pm_os_space(int fd, struct pm_os_space *out) {
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0)
        return false;
    out->all = (uint64_t)fs.f_blocks * fs.f_frsize;
    out->used = ((uint64_t)fs.f_blocks - fs.f_bfree) * fs.f_frsize;
    out->free = (uint64_t)fs.f_bavail * fs.f_frsize;
    return true;
}

// Not readdir(), which allocates.
ssize_t pm_os_read_entries(int fd, char *buffer, size_t size) {
    return syscall(SYS_getdents64, fd, buffer, size);
}

const char *pm_os_next_name(const char *buffer, ssize_t got, ssize_t *at) {
    while (*at < got) {
        // glibc's and musl's struct dirent is the kernel's struct linux_dirent64.
        const struct dirent *entry = (const void *)(buffer + *at);
        *at += entry->d_reclen;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            return entry->d_name;
    }
    return NULL;
}

bool pm_os_each_name(int fd, bool (*each)(const char *name, void *arg), void *arg) {
    _Alignas(struct dirent) char buffer[4096];
    ssize_t got;
    while ((got = pm_os_read_entries(fd, buffer, sizeof buffer)) > 0) {
        const char *name;
        for (ssize_t at = 0; (name = pm_os_next_name(buffer, got, &at)) != NULL;)
            if (!each(name, arg))
                return true;
    }
    return got == 0;
}

// ---- who has a file open ------------------------------------------------------------------------

struct search {
    uint64_t dev, ino;
    int fds; // /proc/PID/fd
    int self;
    bool open;
    int lowest; // 0: none yet
};

static bool is_it(const char *name, void *arg) {
    struct search *s = arg;
    struct stat st;
    s->open = fstatat(s->fds, name, &st, 0) == 0 && st.st_dev == s->dev && st.st_ino == s->ino;
    return !s->open;
}

static bool look_at_process(const char *name, void *arg) {
    struct search *s = arg;
    char path[32];
    int pid = atoi(name);
    if (pid <= 0 || pid == s->self || (s->lowest && pid > s->lowest))
        return true;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    s->fds = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->open = false;
    if (s->fds < 0)
        return true;
    pm_os_each_name(s->fds, is_it, s);
    close(s->fds);
    if (s->open)
        s->lowest = pid;
    return true;
}

pid_t pm_os_who_has_open(uint64_t dev, uint64_t ino) {
    char self[16] = "";
    struct search search = {.dev = dev, .ino = ino};
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return 0;
    if (readlink("/proc/self", self, sizeof self - 1) > 0)
        search.self = atoi(self);
    pm_os_each_name(proc, look_at_process, &search);
    close(proc);
    return search.lowest;
}

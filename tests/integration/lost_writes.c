// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded before the library under test: its syncs go to a disk that fails.
#include "lost_writes.h"

#include <signal.h>
#include <stdatomic.h>

static bool in_tree(const char *path) {
    size_t len = strlen(root);
    return strncmp(path, root, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static bool ends(const char *path, const char *end) {
    size_t len = strlen(path), tail = strlen(end);
    return len >= tail && strcmp(path + len - tail, end) == 0;
}

// The number of this sync is the length of a file.
static bool is_now(int guard) {
    struct stat st;
    if (fstat(guard, &st) != 0 || raw(SYS_ftruncate, guard, st.st_size + 1, 0, 0, 0, 0) != 0)
        die("cannot count in", disk);
    if (st.st_size + 1 == fail_at && kills)
        raw(SYS_kill, getpid(), SIGKILL, 0, 0, 0, 0);
    return st.st_size + 1 == fail_at;
}

// The descriptor may be for writing only.
static void sync_open_file(int fd, struct key key, uint64_t from, uint64_t to, bool good) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int file = open_raw(link, O_RDONLY);
    if (file < 0)
        die("cannot read", "a file");
    sync_file(file, key, from, to, good);
    close_raw(file);
}

static bool sync_path(int fd, const char *path, uint64_t from, uint64_t to, bool all) {
    struct stat st;
    int guard = lock();
    bool good = !ends(path, only) || !is_now(guard);
    if (fstat(fd, &st) != 0)
        die("cannot look at", path);
    struct key key = key_at(fd, "", AT_EMPTY_PATH);
    if (all && good)
        sync_tree(root);
    else if (!all && S_ISREG(st.st_mode))
        sync_open_file(fd, key, from, to, good);
    else if (!all && S_ISDIR(st.st_mode) && good)
        sync_dir(path, key);
    close_raw(guard);
    if (!good)
        errno = EIO;
    return good;
}

static int sync_fd(int fd, long call, bool all) {
    char link[64], path[PATH] = "";
    struct stat tree, here;
    if (!is_set())
        return (int)done(raw(call, fd, 0, 0, 0, 0, 0));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH - 1, 0, 0);
    bool ours = all ? stat(root, &tree) == 0 && fstat(fd, &here) == 0 && tree.st_dev == here.st_dev
                    : in_tree(path);
    if (!ours)
        return (int)done(raw(call, fd, 0, 0, 0, 0, 0));
    return sync_path(fd, path, 0, UINT64_MAX / 2, all) ? 0 : -1;
}

// The line of /proc/self/maps that has the address: the file, and where the range lies there.
static bool find_mapping(uintptr_t addr, char *path, uint64_t *at) {
    static char text[1 << 20];
    long have = 0, got;
    int fd = open_raw("/proc/self/maps", O_RDONLY);
    while ((got = raw(SYS_read, fd, (long)(text + have), (long)sizeof text - 1 - have, 0, 0, 0)) >
           0)
        have += got;
    close_raw(fd);
    text[have] = '\0';
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        unsigned long from, to, offset;
        int name = 0;
        *end = '\0';
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &from, &to, &offset, &name) < 3 ||
            addr < from || addr >= to)
            continue;
        *at = offset + (addr - from);
        snprintf(path, PATH, "%s", line + name);
        return true;
    }
    return false;
}

static int sync_mapped(uintptr_t addr, uint64_t len, long flags) {
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    char path[PATH];
    uint64_t at = 0;
    bool found = is_set();
    while (atomic_flag_test_and_set(&busy)) {
    }
    found = found && find_mapping(addr, path, &at);
    atomic_flag_clear(&busy);
    if (!found || !in_tree(path))
        return (int)done(raw(SYS_msync, (long)addr, (long)len, flags, 0, 0, 0));
    if (strstr(path, " (deleted)"))
        return 0;
    int fd = open_raw(path, O_RDWR);
    if (fd < 0)
        die("cannot open", path);
    bool good = sync_path(fd, path, at / PAGE * PAGE, (at + len + PAGE - 1) / PAGE * PAGE, false);
    int saved = errno;
    close_raw(fd);
    errno = saved;
    return good ? 0 : -1;
}

int fsync(int fd) { return sync_fd(fd, SYS_fsync, false); }
int fdatasync(int fd) { return sync_fd(fd, SYS_fdatasync, false); }
int syncfs(int fd) { return sync_fd(fd, SYS_syncfs, true); }
int msync(void *addr, size_t len, int flags) { return sync_mapped((uintptr_t)addr, len, flags); }

static void note_written(int fd, uint64_t from, uint64_t to) {
    static const char ones[CHUNK / PAGE] = {[0 ... CHUNK / PAGE - 1] = 1};
    char link[64], path[PATH] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH - 1, 0, 0);
    if (!in_tree(path))
        return;
    int again = open_side(key_at(fd, "", AT_EMPTY_PATH), "again", O_RDWR | O_CREAT);
    if (again < 0)
        die("cannot note", path);
    for (uint64_t page = from / PAGE, part; page * PAGE < to; page += part) {
        part = (to + PAGE - 1) / PAGE - page;
        part = part < sizeof ones ? part : sizeof ones;
        store(again, ones, part, page);
    }
    close_raw(again);
}

static ssize_t write_at(int fd, const void *data, size_t len, off_t at) {
    ssize_t put = done(raw(SYS_pwrite64, fd, (long)data, (long)len, at, 0, 0));
    if (put > 0 && is_set())
        note_written(fd, (uint64_t)at, (uint64_t)at + (uint64_t)put);
    return put;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at) {
    return write_at(fd, data, len, at);
}

ssize_t copy_file_range(int from, off_t *at, int to, off_t *put, size_t len, unsigned flags) {
    long copied = done(raw(SYS_copy_file_range, from, (long)at, to, (long)put, (long)len, flags));
    if (copied > 0 && is_set() && put)
        note_written(to, (uint64_t)*put - (uint64_t)copied, (uint64_t)*put);
    return copied;
}

long syscall(long number, ...) {
    long a[6];
    RAW_ARGUMENTS(a, number);
    if (number == SYS_fsync || number == SYS_fdatasync)
        return sync_fd((int)a[0], number, false);
    if (number == SYS_syncfs)
        return sync_fd((int)a[0], number, true);
    if (number == SYS_msync)
        return sync_mapped((uintptr_t)a[0], (uint64_t)a[1], a[2]);
    if (number == SYS_pwrite64)
        return write_at((int)a[0], (const void *)a[1], (size_t)a[2], (off_t)a[3]);
    return done(raw(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

// Only because the library calls them through a layer (SEEN_CALLS in the Makefile).
int madvise(void *at, size_t len, int advice) {
    return (int)done(raw(SYS_madvise, (long)at, (long)len, advice, 0, 0, 0));
}
void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset) {
    return (void *)done(raw(SYS_mmap, (long)at, (long)len, prot, flags, fd, offset));
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "os.h"
#include "os_file.h"

#define ROOT_INODE 1u // of each /proc

static const char *const path_of[PM_PROC_KEPT] = {"self/task", "thread-self/pagemap"};
static const int flags_of[PM_PROC_KEPT] = {O_DIRECTORY, 0};

struct kept {
    int fd;
    uint64_t dev, ino;
};
static struct kept root = {.fd = -1}; // /proc: "self" in it is whoever asks, a forked child too
static struct kept kept[PM_PROC_KEPT];
_Atomic bool pm_proc_no_detour;
static pid_t keeper;                    // the process that the others are about
static _Atomic int taken[PM_PROC_KEPT]; // the list has one place in it, so one thread at a time

static bool is_ours(const struct kept *k) { return pm_os_fd_is(k->fd, k->dev, k->ino); }

static int open_at(int dir, const char *path, int flags) {
    return (int)syscall(SYS_openat, dir, path, flags | O_RDONLY | O_CLOEXEC);
}

// A low number belongs to the program, so nothing is kept where no high one can be had.
static void keep(struct kept *k, int fd) {
    struct stat st;
    int high = pm_os_fd_high(fd);
    *k = (struct kept){.fd = -1};
    if (high == fd || fstat(high, &st) != 0) {
        if (high >= 0)
            close(high);
        return;
    }
    *k = (struct kept){high, st.st_dev, st.st_ino};
}

static void forget(struct kept *k) {
    if (k->fd >= 0 && is_ours(k))
        pm_os_close(k->fd);
    k->fd = -1;
}

// It may be there, where a descriptor cannot be had.
static bool has_no_number(int fd) { return fd < 0 && (errno == EMFILE || errno == ENFILE); }

static bool keep_root(void) {
    struct statfs fs;
    if (root.fd >= 0 && is_ours(&root))
        return true;
    int fd = open_at(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY);
    if (has_no_number(fd))
        return true;
    if (fd < 0 || fstatfs(fd, &fs) != 0 || fs.f_type != PROC_SUPER_MAGIC) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    keep(&root, fd);
    return true;
}

bool pm_proc_keep(void) {
    int saved = errno;
    bool there = keep_root();
    for (unsigned i = 0; i < PM_PROC_KEPT && there; i++) {
        int fd = pm_proc_open(path_of[i], flags_of[i]);
        // Another file than the list may be missing in an odd kernel.
        there = fd >= 0 || has_no_number(fd) || i != PM_PROC_TASKS;
        if (keeper)
            forget(&kept[i]);
        keep(&kept[i], fd);
        atomic_store_explicit(&taken[i], 0, memory_order_relaxed);
    }
    keeper = getpid();
    errno = saved;
    return there;
}

void pm_proc_drop(void) {
    int saved = errno;
    forget(&root);
    for (unsigned i = 0; i < PM_PROC_KEPT && keeper; i++)
        forget(&kept[i]);
    errno = saved;
}

int pm_proc_open(const char *path, int flags) {
    char whole[96];
    snprintf(whole, sizeof whole, "/proc/%s", path);
    int fd = open_at(AT_FDCWD, whole, flags);
    if (fd >= 0 || root.fd < 0 || !is_ours(&root) || root.ino != ROOT_INODE)
        return fd;
    return open_at(root.fd, path, flags);
}

int pm_proc_take(enum pm_proc_kept what) {
    int fd = pm_proc_open(path_of[what], flags_of[what]);
    if (fd >= 0)
        return fd;
    int error = errno;
    bool had = keeper == getpid() && is_ours(&kept[what]);
    had = had && !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
    if (had && what == PM_PROC_PAGEMAP)
        return kept[what].fd;
    if (had && !atomic_exchange_explicit(&taken[what], 1, memory_order_acquire)) {
        if (syscall(SYS_lseek, kept[what].fd, 0, SEEK_SET) == 0)
            return kept[what].fd;
        atomic_store_explicit(&taken[what], 0, memory_order_release);
    }
    errno = error;
    return -1;
}

void pm_proc_each_kept(void (*fn)(int fd, void *arg), void *arg) {
    if (root.fd >= 0 && is_ours(&root))
        fn(root.fd, arg);
    for (unsigned i = 0; i < PM_PROC_KEPT && keeper; i++)
        if (kept[i].fd >= 0 && is_ours(&kept[i]))
            fn(kept[i].fd, arg);
}

void pm_proc_give_back(int fd) {
    for (unsigned i = 0; i < PM_PROC_KEPT; i++)
        if (keeper && fd == kept[i].fd) {
            atomic_store_explicit(&taken[i], 0, memory_order_release);
            return;
        }
    if (fd >= 0)
        syscall(SYS_close, fd);
}

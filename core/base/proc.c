// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "here.h"
#include "looker.h"
#include "mappings.h"
#include "os.h"
#include "os_file.h"

#define ROOT_INODE 1u // of each /proc

static const char *const path_of[PM_PROC_KEPT] = {"self/task", "thread-self/pagemap",
                                                  "thread-self/status", "thread-self/statm"};
static const int flags_of[PM_PROC_KEPT] = {O_DIRECTORY, 0, 0, 0};

struct kept {
    int fd;
    uint64_t dev, ino;
};
static struct kept root = {.fd = -1}; // /proc: "self" in it is whoever asks, a forked child too
static struct kept kept[PM_PROC_KEPT];
_Atomic bool pm_proc_no_detour;
static pid_t keeper;                    // the process that the others are about
static _Atomic uint32_t keepers_number; // its pm_here_number(), once it was asked for its id
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

static bool root_will_do(void) { return root.fd >= 0 && is_ours(&root) && root.ino == ROOT_INODE; }

// In the table of this thread.
static int open_here(const char *path, int flags) {
    char whole[96];
    snprintf(whole, sizeof whole, "/proc/%s", path);
    int fd = open_at(AT_FDCWD, whole, flags);
    return fd >= 0 || !root_will_do() ? fd : open_at(root.fd, path, flags);
}

static const struct pm_mappings_door door = {pm_proc_open, pm_proc_read, pm_proc_close};

bool pm_proc_keep(void) {
    pm_mappings_door = &door;
    int saved = errno;
    bool there = keep_root();
    for (unsigned i = 0; i < PM_PROC_KEPT && there; i++) {
        int fd = open_here(path_of[i], flags_of[i]);
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

int pm_proc_root(void) { return root_will_do() ? root.fd : -1; }

int pm_proc_open(const char *path, int flags) {
    long there = pm_looker_open(path, flags);
    if (there == PM_LOOKER_NONE)
        return open_here(path, flags);
    if (there < 0)
        errno = (int)-there;
    return there < 0 ? -1 : (int)there;
}

// The looker's "thread-self" is the looker. The link says which numbers /proc has for this thread.
int pm_proc_open_mine(const char *name, int flags) {
    char path[96], link[64];
    ssize_t len = readlink("/proc/thread-self", link, sizeof link - 1);
    if (len <= 0 && root_will_do())
        len = readlinkat(root.fd, "thread-self", link, sizeof link - 1);
    link[len > 0 ? len : 0] = '\0';
    snprintf(path, sizeof path, "%s/%s", len > 0 ? link : "self", name);
    return pm_proc_open(path, flags);
}

long pm_proc_call(long number, int fd, long b, long c, long d) {
    if (!(fd & PM_LOOKER_FD))
        return syscall(number, fd, b, c, d);
    long result = pm_looker_call(number, fd, b, c, d);
    if (result < 0)
        errno = (int)-result;
    return result < 0 ? -1 : result;
}

ssize_t pm_proc_read(int fd, void *to, size_t size) {
    return pm_proc_call(SYS_read, fd, (long)to, (long)size, 0);
}

void pm_proc_close(int fd) {
    if (fd >= 0)
        pm_proc_call(SYS_close, fd, 0, 0, 0);
}

bool pm_proc_each_name(int fd, bool (*each)(const char *name, void *arg), void *arg) {
    _Alignas(8) char buffer[4096];
    ssize_t got;
    if (!(fd & PM_LOOKER_FD))
        return pm_os_each_name(fd, each, arg);
    while ((got = pm_proc_call(SYS_getdents64, fd, (long)buffer, sizeof buffer, 0)) > 0) {
        const char *name;
        for (ssize_t at = 0; (name = pm_os_next_name(buffer, got, &at)) != NULL;)
            if (!each(name, arg))
                return true;
    }
    return got == 0;
}

ssize_t pm_proc_text(const char *path, char *text, size_t size) {
    ssize_t got = pm_looker_text(path, text, size - 1);
    if (got == PM_LOOKER_NONE) {
        int fd = pm_proc_open(path, O_RDONLY);
        got = fd < 0 ? -1 : pm_proc_read(fd, text, size - 1);
        int error = errno;
        pm_proc_close(fd);
        errno = error;
    } else if (got < 0) {
        errno = (int)-got;
        got = -1;
    }
    text[got > 0 ? got : 0] = '\0';
    return got;
}

// A child of vfork() has the keeper's memory, of which the others tell, but threads of its own.
static bool is_of_keeper(enum pm_proc_kept what) {
    uint32_t number = pm_here_number();
    bool same = number && number == atomic_load_explicit(&keepers_number, memory_order_relaxed);
    if (same && what != PM_PROC_TASKS)
        return true;
    if (keeper != getpid())
        return false;
    atomic_store_explicit(&keepers_number, number, memory_order_relaxed);
    return true;
}

static bool have(enum pm_proc_kept what) {
    return is_of_keeper(what) && is_ours(&kept[what]) &&
           !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
}

int pm_proc_take(enum pm_proc_kept what) {
    bool had = have(what);
    if (had && what == PM_PROC_PAGEMAP)
        return kept[what].fd;
    if (had && !atomic_exchange_explicit(&taken[what], 1, memory_order_acquire)) {
        if (syscall(SYS_lseek, kept[what].fd, 0, SEEK_SET) == 0)
            return kept[what].fd;
        atomic_store_explicit(&taken[what], 0, memory_order_release);
    }
    return pm_proc_open(path_of[what], flags_of[what]);
}

// Of a thread without memory, which has ended, the files say nothing of memory.
static bool is_whole(enum pm_proc_kept what, const char *text) {
    return what == PM_PROC_STATM ? text[0] > '0' : strstr(text, "\nVmSize:") != NULL;
}

ssize_t pm_proc_kept_text(enum pm_proc_kept what, char *text, size_t size) {
    ssize_t got = have(what) ? syscall(SYS_pread64, kept[what].fd, text, size - 1, 0) : 0;
    text[got > 0 ? got : 0] = '\0';
    return got > 0 && is_whole(what, text) ? got : pm_proc_text(path_of[what], text, size);
}

void pm_proc_each_kept(int only, void (*fn)(int fd, void *arg), void *arg) {
    if (root.fd >= 0 && (only < 0 || root.fd == only) && is_ours(&root))
        fn(root.fd, arg);
    for (unsigned i = 0; i < PM_PROC_KEPT && keeper; i++)
        if (kept[i].fd >= 0 && (only < 0 || kept[i].fd == only) && is_ours(&kept[i]))
            fn(kept[i].fd, arg);
}

void pm_proc_give_back(int fd) {
    for (unsigned i = 0; i < PM_PROC_KEPT; i++)
        if (keeper && fd == kept[i].fd) {
            atomic_store_explicit(&taken[i], 0, memory_order_release);
            return;
        }
    pm_proc_close(fd);
}

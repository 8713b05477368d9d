// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "kernel_stores.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/os_file.h"
#include "base/proc.h"
#include "media/commit/stored_pages.h"
#include "threads/tasks.h"

_Atomic bool pm_kernel_got_pages;

// ---- descriptors --------------------------------------------------------------------------------

struct table {
    int fds;     // its directory in /proc
    pid_t other; // a thread with another table than this one's, 0: this thread's
    bool may;    // something there may store
};

// Devices that store to memory of the process only while it calls them, by their numbers.
static bool is_harmless_device(dev_t device) {
    unsigned number = major(device), minor_number = minor(device);
    return (number == 1 && minor_number != 1) ||    // null, zero, random; not mem
           number == 4 || number == 5 ||            // terminals
           (number >= 136 && number <= 143) ||      // pseudo-terminals
           (number == 10 && minor_number == 200) || // tun
           (number == 10 && minor_number == 229);   // fuse
}

// What has no file behind it: io_uring, guests and their devices are not among these.
static bool is_harmless_inode(const struct table *t, const char *number) {
    static const char *const harmless[] = {
        "[event", "inotify", "[timerfd",  "[signalfd", "[fanotify",  "[pidfd",    "[perf_event",
        "bpf-",   "bpf_",    "[landlock", "seccomp ",  "[fscontext", "[fanotify",
    };
    static const char prefix[] = "anon_inode:";
    char link[64];
    long len = pm_proc_call(SYS_readlinkat, t->fds, (long)number, (long)link, sizeof link - 1);
    link[len > 0 ? len : 0] = '\0';
    if (strncmp(link, prefix, sizeof prefix - 1) != 0)
        return len <= 0; // closed meanwhile; else a kernel that names it otherwise
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strncmp(link + sizeof prefix - 1, harmless[i], strlen(harmless[i])) == 0)
            return true;
    return false;
}

// The number behind a name. UINT64_MAX: it is not there.
static uint64_t number_behind(const char *text, const char *name, int base) {
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, base) : UINT64_MAX;
}

// Open for direct I/O. Of another table the kernel does not tell by a call.
static bool is_direct(const struct table *t, const char *number) {
    if (!t->other) {
        int flags = fcntl(atoi(number), F_GETFL);
        return flags >= 0 && flags & O_DIRECT;
    }
    char path[64], text[256];
    snprintf(path, sizeof path, "self/task/%d/fdinfo/%.16s", (int)t->other, number);
    pm_proc_text(path, text, sizeof text);
    return number_behind(text, "flags:\t", 8) & O_DIRECT;
}

static bool look_at(const struct table *t, const char *number, struct stat *st) {
    if (!t->other)
        return fstat(atoi(number), st) == 0;
    return pm_proc_call(SYS_newfstatat, t->fds, (long)number, (long)st, 0) == 0;
}

static bool may_store(const struct table *t, const char *number) {
    struct stat st;
    if (!t->other && atoi(number) == pm_stored_fd()) // it stores nothing
        return false;
    if (is_direct(t, number))
        return true;
    if (!look_at(t, number, &st))
        return false; // closed meanwhile
    if (S_ISCHR(st.st_mode))
        return !is_harmless_device(st.st_rdev);
    return !(st.st_mode & S_IFMT) && !is_harmless_inode(t, number);
}

static bool none_yet(const char *number, void *arg) {
    struct table *t = arg;
    t->may = may_store(t, number);
    return !t->may;
}

// `path`: its directory in /proc; NULL: this thread's.
static bool table_may_store(struct table *t, const char *path) {
    t->fds = path ? pm_proc_open(path, O_DIRECTORY) : pm_proc_open_mine("fd", O_DIRECTORY);
    if (t->fds < 0)
        return true;
    bool listed = pm_proc_each_name(t->fds, none_yet, t);
    pm_proc_close(t->fds);
    return t->may || !listed;
}

#define KCMP_FILES 2

// A thread has a table of its own after unshare(CLONE_FILES). One that has ended has none.
static void look_at_thread(pid_t id, void *found) {
    pid_t self = (pid_t)syscall(SYS_gettid);
    char path[48];
    struct table t = {.other = id};
    bool asks = !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
    if (*(bool *)found || (asks && syscall(SYS_kcmp, self, id, KCMP_FILES, 0, 0) == 0))
        return;
    snprintf(path, sizeof path, "self/task/%d/fd", (int)id);
    *(bool *)found = !pm_task_is_dead(id) && table_may_store(&t, path);
}

// ---- without a descriptor -----------------------------------------------------------------------

// What stays when its descriptor is closed: a ring, and sockets with rings (AF_XDP).
static bool is_mapped(void) {
    static const char *const such[] = {
        "[io_uring]",  "socket:[",  "/[aio]",   "/dev/infiniband/", "/dev/vfio/",
        "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/video",       "anon_inode:kvm",
    };
    char text[2048];
    size_t kept = 0;
    ssize_t got = -1;
    bool found = false;
    int fd = pm_proc_open("thread-self/maps", O_RDONLY);
    while (fd >= 0 && !found && (got = pm_proc_read(fd, text + kept, sizeof text - 1 - kept)) > 0) {
        size_t have = kept + (size_t)got;
        text[have] = '\0';
        for (size_t i = 0; i < sizeof such / sizeof such[0]; i++)
            found |= strstr(text, such[i]) != NULL;
        kept = have < 32 ? have : 32; // a name may span two pieces
        memmove(text, text + have - kept, kept);
    }
    pm_proc_close(fd);
    return found || got < 0;
}

// The kernel counts pages that are pinned for long: by RDMA, by rings with registered buffers. As
// long as the memory has the same size, what is mapped is taken to be the same.
static bool is_pinned_or_mapped(void) {
    static uint64_t seen;
    static bool mapped;
    char text[2048];
    pm_proc_kept_text(PM_PROC_STATUS, text, sizeof text);
    uint64_t size = number_behind(text, "\nVmSize:", 10);
    if (number_behind(text, "\nVmPin:", 10))
        return true;
    if (size != seen || size == UINT64_MAX)
        mapped = is_mapped();
    seen = size;
    return mapped;
}

bool pm_kernel_stores(void) {
    struct table own = {0};
    bool found = atomic_load_explicit(&pm_kernel_got_pages, memory_order_relaxed) ||
                 is_pinned_or_mapped() || table_may_store(&own, NULL);
    return found || !pm_tasks_each_other(look_at_thread, &found) || found;
}

static enum { NOT_ASKED, STORES_NONE, STORES } answer;

void pm_kernel_stores_anew(void) { answer = NOT_ASKED; }

bool pm_kernel_stores_now(void) {
    if (answer == NOT_ASKED)
        answer = pm_kernel_stores() ? STORES : STORES_NONE;
    return answer == STORES;
}

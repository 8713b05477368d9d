// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "defaults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os_file.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"

const char *defaults_dir(void) {
    static char dir[64];
    snprintf(dir, sizeof dir, "/dev/shm/pmalloc-%u", (unsigned)geteuid());
    return dir;
}

// ---- one heap -----------------------------------------------------------------------------------

static int open_dir(const char *dir) {
    return open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

struct sum {
    int fd;
    int error; // of a file that cannot be looked at
    uint64_t bytes;
};

static bool add_bytes(const char *name, void *arg) {
    struct sum *sum = arg;
    struct stat st;
    if (fstatat(sum->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        sum->error = errno == ENOENT ? sum->error : errno; // ENOENT: it has gone meanwhile
    else if (S_ISREG(st.st_mode))
        sum->bytes += (uint64_t)st.st_blocks * 512;
    return true;
}

// Of all files in it, whosever they are.
static void count_bytes(struct default_heap *h) {
    struct sum sum = {.fd = open(h->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (sum.fd < 0)
        sum.error = errno == ENOTDIR || errno == ENOENT ? 0 : errno;
    else if (!pm_os_each_name(sum.fd, add_bytes, &sum))
        sum.error = errno;
    if (sum.fd >= 0)
        close(sum.fd);
    h->bytes = sum.bytes;
    if (sum.error)
        snprintf(h->why, sizeof h->why, "its space cannot be counted: %s", pm_strerror(sum.error));
}

static enum default_state state_without_heap(const char *dir, int status) {
    int fd = open_dir(dir);
    bool remnant = fd >= 0 && pm_dir_is_remnant(fd);
    if (fd >= 0)
        close(fd);
    return remnant ? DEFAULT_REMNANT : status == PM_DAMAGE ? DEFAULT_DAMAGED : DEFAULT_FOREIGN;
}

// Removes a directory that is no working heap, unless a process has it open.
static void remove_broken(const struct default_heap *h) {
    int fd = open_dir(h->dir);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && pm_os_fd_at_path(fd, h->dir) &&
        (h->state != DEFAULT_REMNANT || pm_dir_is_remnant(fd))) {
        pm_heap_remove_at(fd, h->dir);
    }
    close(fd);
}

bool default_is_purged(const struct default_heap *h, enum default_purge purge) {
    if (h->state == DEFAULT_CLEAN || h->state == DEFAULT_DIRTY)
        return purge == PURGE_ALL || (purge == PURGE_ROOTLESS && !h->roots);
    return (h->state == DEFAULT_DAMAGED && purge == PURGE_ALL) ||
           (h->state == DEFAULT_REMNANT && purge != PURGE_NONE);
}

static void finish_removal(struct default_heap *h) {
    struct stat st;
    h->removed = lstat(h->dir, &st) != 0 && errno == ENOENT;
    h->stuck = !h->removed;
    if (h->stuck)
        snprintf(h->why, sizeof h->why,
                 "could not be removed: it holds other files, or came into use");
}

// Looks at one heap, and removes it if `purge` says so. For a purge the heap is locked as its owner
// would lock it, from the first look to the removal.
static void look(struct default_heap *h, enum default_purge purge) {
    struct pm_error err;
    count_bytes(h);
    int status = pm_heap_open(h->dir, purge == PURGE_NONE ? PM_OPEN_READONLY : PM_OPEN_EXISTING,
                              false, &err);
    if (status == PM_OK) {
        h->state = pm_heap_is_clean() ? DEFAULT_CLEAN : DEFAULT_DIRTY;
        h->roots = pm_heap_has_roots();
        if (default_is_purged(h, purge)) {
            pm_heap_remove();
            finish_removal(h);
        }
        pm_heap_release();
    } else if (pm_is_busy(&err)) {
        h->state = DEFAULT_BUSY;
        h->pid = err.holder.pid;
    } else {
        h->state = state_without_heap(h->dir, status);
        if (h->state != DEFAULT_REMNANT)
            snprintf(h->why, sizeof h->why, "%s", err.text);
        if (default_is_purged(h, purge)) {
            remove_broken(h);
            finish_removal(h);
        }
    }
}

// ---- all of them --------------------------------------------------------------------------------

// The name of a heap is its program's, and that may begin with a dot.
static int is_entry(const struct dirent *e) {
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

int defaults_each(enum default_purge purge,
                  void (*visit)(const struct default_heap *heap, void *arg), void *arg,
                  struct pm_error *err) {
    const char *dir = defaults_dir();
    struct stat st;
    int looked = lstat(dir, &st);
    if (looked != 0 && errno == ENOENT)
        return PM_OK;
    if (looked != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: %s", dir, pm_strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is not a directory of user %u alone; refusing to use it", dir,
                       (unsigned)geteuid());
    struct dirent **entries;
    int count = scandir(dir, &entries, is_entry, alphasort);
    if (count < 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: %s", dir, pm_strerror(errno));
    pm_options_default();
    for (int i = 0; i < count; i++) {
        struct default_heap heap = {0};
        snprintf(heap.dir, sizeof heap.dir, "%s/%s", dir, entries[i]->d_name);
        look(&heap, purge);
        visit(&heap, arg);
        free(entries[i]);
    }
    free(entries);
    return PM_OK;
}

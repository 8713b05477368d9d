// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/os_file.h"
#include "media/backing/volume.h"
#include "media/heap.h"
#include "tools/common/figures.h"

int target_failed(const struct target *t, const char *name, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", t->dir, name, pm_strerror(errno));
}

// ---- where it is --------------------------------------------------------------------------------

// The directory's real path, or that of its parent if it does not exist.
static bool real_path(const char *dir, char out[PATH_MAX]) {
    char parent[PATH_MAX];
    if (realpath(dir, out))
        return true;
    size_t len = strlen(dir);
    if (errno != ENOENT || len >= sizeof parent)
        return false;
    memcpy(parent, dir, len + 1);
    while (len > 1 && parent[len - 1] == '/')
        parent[--len] = '\0';
    char *slash = strrchr(parent, '/');
    if (!slash)
        return realpath(".", out) != NULL;
    slash[slash == parent] = '\0';
    return realpath(parent, out) != NULL;
}

static bool lies_in(const char *path, const char *folder) {
    size_t len = strlen(folder);
    return strncmp(path, folder, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static int refuse_inside(const char *dir, struct pm_error *err) {
    char path[PATH_MAX], folder[PATH_MAX], link[PATH_MAX];
    if (!real_path(dir, path))
        return pm_fail(err, PM_OPERATIONAL, "%.300s: cannot make the backup there: %s", dir,
                       pm_strerror(errno));
    for (unsigned k = 0; k < pm_heap.volumes; k++) {
        snprintf(link, sizeof link, k ? "%.4000s/volume.%u" : "%.4000s", pm_heap.dir, k);
        if (realpath(link, folder) && lies_in(path, folder))
            return pm_fail(err, PM_OPERATIONAL,
                           "%.200s lies in the heap %.200s itself; name a directory elsewhere, "
                           "best on another device",
                           dir, pm_heap.dir);
    }
    return PM_OK;
}

// ---- opening and locking ------------------------------------------------------------------------

static int lock(const struct target *t, int fd, struct pm_error *err) {
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return target_failed(t, ".", err);
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s is in use, by another pmalloc-backup or by a program that has "
                       "this backup open as its heap; wait for it to end (`fuser -v` on the "
                       "directory names it)",
                       t->dir);
    }
    return PM_OK;
}

static int check_owner(const struct target *t, struct pm_error *err) {
    struct stat st;
    if (fstat(t->fd, &st) != 0)
        return target_failed(t, ".", err);
    if (st.st_uid != geteuid())
        return pm_fail(err, PM_OPERATIONAL, "%.300s belongs to user %u, not to user %u", t->dir,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 022)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.200s can be written by others (mode %03o); run: chmod 700 '%.200s'",
                       t->dir, (unsigned)st.st_mode & 0777, t->dir);
    return PM_OK;
}

static int open_dir(struct target *t, bool make, struct pm_error *err) {
    t->made = make && mkdir(t->dir, 0700) == 0;
    if (make && !t->made && errno != EEXIST)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: cannot make the directory: %s", t->dir,
                       pm_strerror(errno));
    t->fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (t->fd < 0)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: cannot open the backup: %s", t->dir,
                       pm_strerror(errno));
    int status = check_owner(t, err);
    return status == PM_OK ? lock(t, t->fd, err) : status;
}

static bool note_name(const char *name, void *arg) {
    snprintf(arg, NAME_MAX + 1, "%s", name);
    return false;
}

static int refuse_strangers(const struct target *t, struct pm_error *err) {
    char name[NAME_MAX + 1] = "";
    if (!pm_os_each_name(t->fd, note_name, name))
        return target_failed(t, ".", err);
    if (!name[0])
        return PM_OK;
    enum pm_there heap = pm_os_there(t->fd, pm_heap.super_file.name);
    if (heap == PM_CANNOT_TELL)
        return target_failed(t, pm_heap.super_file.name, err);
    if (heap == PM_IS_THERE)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s is a heap, not a backup; name another directory", t->dir);
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s is no backup, and not empty (it holds '%.100s'); name an empty or new "
                   "directory",
                   t->dir, name);
}

// A daemon that has closed all of its descriptors holds the lock of the superblock alone.
static int look_inside(struct target *t, struct pm_error *err) {
    t->state = pm_backup_state(t->fd);
    if (t->state == PM_BACKUP_IS_UNKNOWN)
        return target_failed(t, ".", err);
    if (t->state == PM_BACKUP_IS_NONE)
        return refuse_strangers(t, err);
    if (t->state == PM_BACKUP_IS_UNFINISHED)
        return PM_OK;
    const char *name =
        t->state == PM_BACKUP_IS_PLAIN ? pm_heap.super_file.name : PM_BACKUP_SUPERBLOCK;
    int fd = openat(t->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return target_failed(t, name, err);
    int status = lock(t, fd, err); // until the tool ends
    return status == PM_OK ? kept_load(t->fd, t->dir, &t->kept, err) : status;
}

static int open_target(const char *dir, bool make, struct target *t, struct pm_error *err) {
    *t = (struct target){.dir = dir, .fd = -1};
    int status = open_dir(t, make, err);
    return status == PM_OK ? look_inside(t, err) : status;
}

int target_open(const char *dir, struct target *t, struct pm_error *err) {
    int status = open_target(dir, false, t, err);
    if (status == PM_OK && t->state == PM_BACKUP_IS_NONE)
        status = pm_fail(err, PM_OPERATIONAL,
                         "%.300s is empty; make a backup: pmalloc-backup HEAP DIR", dir);
    return status;
}

// ---- whose it is --------------------------------------------------------------------------------

// An unfinished backup may have little of its superblock yet: then `known` becomes false.
static int read_uuid(const struct target *t, uint8_t uuid[16], bool *known, struct pm_error *err) {
    struct pm_superblock super = {0};
    int fd = openat(t->fd, PM_BACKUP_UNFINISHED, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : pm_os_read_at(fd, &super, sizeof super, 0);
    int status = got < 0 ? target_failed(t, PM_BACKUP_UNFINISHED, err) : PM_OK;
    *known = got == (ssize_t)sizeof super && super.magic == PM_SUPER_MAGIC;
    memcpy(uuid, super.uuid, sizeof super.uuid);
    if (fd >= 0)
        close(fd);
    return status;
}

static int check_heap(const struct target *t, struct pm_error *err) {
    uint8_t uuid[16];
    bool known = t->state != PM_BACKUP_IS_NONE;
    memcpy(uuid, t->kept.uuid, sizeof uuid);
    if (t->state == PM_BACKUP_IS_UNFINISHED && read_uuid(t, uuid, &known, err) != PM_OK)
        return err->status;
    if (!known || memcmp(uuid, pm_heap.super->super.uuid, sizeof uuid) == 0)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.200s is the backup of another heap than %.200s (or of one that was made "
                   "anew since); nothing was changed: name another directory",
                   t->dir, pm_heap.dir);
}

int target_open_for_heap(const char *dir, struct target *t, struct pm_error *err) {
    *t = (struct target){.dir = dir, .fd = -1};
    int status = refuse_inside(dir, err);
    if (status == PM_OK)
        status = open_target(dir, true, t, err);
    return status == PM_OK ? check_heap(t, err) : status;
}

int target_unused(const struct target *t, struct pm_error *err) {
    _Alignas(8) char block[PM_BACKUP_BLOCK];
    const struct pm_backup_place whole = {.bytes = PM_BACKUP_BLOCK};
    const struct kept_file *kept = &t->kept.file[PM_ROW_super_file];
    int fd = openat(t->fd, pm_heap.super_file.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : 1;
    bool same = fd >= 0;
    for (uint64_t i = 0; same && i < kept_blocks(kept->length); i++) {
        got = pm_backup_read_block(fd, i * sizeof block, whole, block);
        same = got > 0 && pm_backup_sum(block) == kept_sum_of(kept, i);
    }
    if (got < 0)
        target_failed(t, pm_heap.super_file.name, err);
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return err->status;
    if (same)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s has been used as a heap since its last round (or its superblock is "
                   "damaged), so it is no backup any more; nothing was changed: name another "
                   "directory",
                   t->dir);
}

// ---- space --------------------------------------------------------------------------------------

int target_room(const struct target *t, uint64_t bytes, struct pm_error *err) {
    struct statvfs fs;
    char needs[32], room[32];
    if (fstatvfs(t->fd, &fs) != 0)
        return target_failed(t, ".", err);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes <= free_bytes)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s: this round needs %s, and the file system has %s; nothing was changed: "
                   "free some space, or name a directory elsewhere",
                   t->dir, figure_bytes(bytes, needs), figure_bytes(free_bytes, room));
}

bool target_sync_parent(const struct target *t) {
    int fd = openat(t->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = fd < 0 || fsync(fd) == 0; // it may not be ours to read
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return good;
}

int target_stamp(const struct target *t, uint64_t round, uint64_t when, struct pm_error *err) {
    struct pm_backup_rounds r;
    if (pm_backup_read_rounds(t->fd, t->dir, &r, err) != PM_OK)
        return err->status;
    if (!r.known)
        return PM_OK; // an older version has made it, and the block may not be there
    int fd = openat(t->fd, PM_BACKUP_CHECKSUMS, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    bool good = fd >= 0 && pm_backup_write_stamp(fd, &r, round, when) && fdatasync(fd) == 0;
    if (!good)
        target_failed(t, PM_BACKUP_CHECKSUMS, err);
    if (fd >= 0)
        close(fd);
    return good ? PM_OK : err->status;
}

void target_give_up(struct target *t) {
    if (t->made)
        rmdir(t->dir);
}

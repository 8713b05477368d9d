// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "base/populate.h"
#include "media/backing/fixed_map.h"
#include "media/backing/view.h"
#include "media/persist.h"

int pm_target_failed(const struct pm_fixed_target *t, const char *what, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s: %s: %s", t->medium->path, what, pm_strerror(errno));
}

// ---- the file or device -------------------------------------------------------------------------

// Only in a file that did not exist is anything allocated.
static int create_file(struct pm_fixed_target *t, uint64_t size, struct pm_error *err) {
    const char *path = t->medium->path;
    if (pm_fixed_check_name(path, err) != PM_OK)
        return err->status;
    if (size == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s does not exist; name a file or device, or give --size to make a file",
                       path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return pm_target_failed(t, "cannot be made", err);
    t->medium->lock = fd;
    t->created = true;
    int status = -1;
    while ((status = fallocate(fd, 0, 0, (off_t)size)) != 0 && errno == EINTR) {
    }
    return status == 0 ? PM_OK : pm_target_failed(t, "its space cannot be allocated", err);
}

static int open_there(struct pm_fixed_target *t, const struct stat *st, struct pm_error *err) {
    const char *path = t->medium->path;
    if (S_ISDIR(st->st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is a directory: a heap there is made by the first program that uses it; "
                       "name a file or device",
                       path);
    if (S_ISLNK(st->st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is a symbolic link, which is not followed; name what it points to",
                       path);
    if (!S_ISREG(st->st_mode) && !S_ISCHR(st->st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is neither a file nor a DAX device; name one of these", path);
    t->medium->lock = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return t->medium->lock < 0 ? pm_target_failed(t, "cannot open it", err) : PM_OK;
}

// A device may have several nodes, and so several locks; this one is of them all (fixed_open.c). It
// is held until the tool ends.
static bool lock_gate(const struct stat *st) {
    int fd = S_ISCHR(st->st_mode) ? pm_fixed_open_gate(st) : -1;
    return fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0;
}

// What is mapped has no lock: in Linux 7 an open file may outlive the process that has mapped it
// by seconds, and its lock with it. The next program would be told that the heap is in use.
static int open_to_map(struct pm_fixed_target *t, const struct stat *st, struct pm_error *err) {
    int fd = open(t->medium->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    t->medium->fd = fd;
    return pm_os_fd_is(fd, st->st_dev, st->st_ino) ? PM_OK
                                                   : pm_target_failed(t, "cannot open it", err);
}

static int check_medium(const struct pm_fixed_target *t, const struct stat *st, bool force,
                        struct pm_error *err) {
    const char *path = t->medium->path;
    if (S_ISCHR(st->st_mode) && pm_fixed_bytes(t->medium->lock) == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is no DAX device, or /sys does not say how large it is", path);
    if (pm_fixed_check_owner(path, st, err) != PM_OK)
        return err->status;
    if (flock(t->medium->lock, LOCK_EX | LOCK_NB) != 0 || !lock_gate(st))
        return pm_fail(err, PM_OPERATIONAL, "%s is in use by another process%s", path,
                       t->one_of_several ? ", or is named twice" : "");
    if (S_ISREG(st->st_mode) && (uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size && !force)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s has %lu bytes, but space for %lu only; allocate it: `fallocate -l %lu "
                       "%s`, or give --force if its file system keeps no holes",
                       path, (unsigned long)st->st_size, (unsigned long)st->st_blocks * 512,
                       (unsigned long)st->st_size, path);
    return PM_OK;
}

static int find_size(struct pm_fixed_target *t, uint64_t size, struct pm_error *err) {
    const char *path = t->medium->path;
    t->there = pm_fixed_bytes(t->medium->lock);
    if (t->there == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is empty; give it its space: `fallocate -l SIZE %s`, or remove it and "
                       "give --size",
                       path, path);
    if (size > t->there)
        return pm_fail(
            err, PM_OPERATIONAL,
            "%s has %lu bytes, less than the %lu of --size; name a longer file, or one that "
            "is missing, which is made",
            path, (unsigned long)t->there, (unsigned long)size);
    t->bytes = (size ? size : t->there) & ~(PM_FIXED_ALIGN - 1);
    if (t->bytes < PM_FIXED_LEAST)
        return pm_fail(err, PM_OPERATIONAL, "%s: %lu bytes are too few for a heap, which needs %lu",
                       path, (unsigned long)(size ? size : t->there),
                       (unsigned long)PM_FIXED_LEAST);
    return PM_OK;
}

int pm_target_open(struct pm_fixed_target *t, const char *path, uint64_t size, bool create,
                   bool force, struct pm_error *err) {
    struct stat st;
    t->medium->fd = t->medium->lock = t->medium->gate = -1;
    if (snprintf(t->medium->path, sizeof t->medium->path, "%s", path) >=
        (int)sizeof t->medium->path)
        return pm_fail(err, PM_OPERATIONAL, "%.60s...: the path is too long", path);
    bool missing = lstat(path, &st) != 0;
    int status = missing && create && errno == ENOENT ? create_file(t, size, err)
                 : missing                            ? pm_target_failed(t, "cannot be read", err)
                                                      : open_there(t, &st, err);
    if (status == PM_OK && fstat(t->medium->lock, &st) != 0)
        status = pm_target_failed(t, "cannot be read", err);
    if (status == PM_OK)
        status = check_medium(t, &st, force, err);
    if (status == PM_OK)
        status = open_to_map(t, &st, err);
    t->medium->device = status == PM_OK && S_ISCHR(st.st_mode);
    return status == PM_OK ? find_size(t, size, err) : status;
}

void pm_target_close(struct pm_fixed_target *t, bool remove) {
    if (t->head)
        munmap(t->head, t->head_len);
    t->head = NULL;
    if (remove && t->created)
        unlink(t->medium->path);
    if (t->medium->fd >= 0)
        close(t->medium->fd);
    if (t->medium->lock >= 0)
        close(t->medium->lock);
    t->medium->fd = t->medium->lock = -1;
}

// --force takes a file with holes, whose file system may have no space for them. A store there
// would raise SIGBUS, and so would a load of a bad block, which read(2) tells apart: the errno.
static bool may_store(const struct pm_fixed_target *t, char *map, size_t len) {
    if (!pm_populate_refused(pm_populate(map, len, MADV_POPULATE_WRITE)))
        return true;
    char page[PM_PAGE_SIZE];
    bool good = true;
    for (uint64_t at = 0; at < len && good; at += sizeof page)
        good = pread(t->medium->lock, page, sizeof page, (off_t)at) >= 0;
    errno = good ? ENOSPC : errno;
    return false;
}

int pm_target_map_head(struct pm_fixed_target *t, size_t len, struct pm_error *err) {
    char *head = pm_medium_map(t->medium->fd, NULL, len, PROT_READ | PROT_WRITE, 0);
    if (head == MAP_FAILED)
        return pm_target_failed(t, "cannot map it", err);
    t->head = head;
    t->head_len = len;
    return may_store(t, head, len) ? PM_OK : pm_target_failed(t, "cannot be written", err);
}

// On a plain file fsync() writes what was stored through a mapping, too. Where the disk fails,
// msync() in persist.c would end the tool, and this step could not be taken back.
bool pm_target_sync(const struct pm_fixed_target *t, const void *at, size_t len) {
    if (pm_durability != PM_DURABLE_PAGE || t->medium->device)
        pm_make_durable(at, len);
    return pm_durability == PM_DURABLE_NONE || t->medium->device || fsync(t->medium->lock) == 0;
}

// ---- what it has --------------------------------------------------------------------------------

// The first byte that is not zero, or `len`.
static uint64_t first_byte(const char *at, uint64_t len) {
    uint64_t i = 0;
    for (const uint64_t *word = (const void *)at; i < len && *word == 0; i += sizeof *word)
        word++;
    while (i < len && at[i] == 0)
        i++;
    return i;
}

static int say_found(const char *path, const char *at, uint64_t offset, uint64_t byte,
                     struct pm_error *err) {
    uint64_t magic;
    memcpy(&magic, at, sizeof magic);
    if (offset == 0 && magic == PM_LAYOUT_MAGIC)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s holds a heap already; to lose that and make a new one: --force", path);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is not empty: its byte %lu is not zero; --force overwrites what it holds",
                   path, (unsigned long)(offset + byte));
}

// The next range from *at on that may have data, in whole pages; returns its end. A file system
// shows space that was only allocated as a hole: that is zeroes on the medium, too.
static uint64_t next_data(const struct pm_fixed_target *t, uint64_t *at, uint64_t to) {
    int fd = t->medium->lock;
    off_t data = t->medium->device ? -1 : lseek(fd, (off_t)*at, SEEK_DATA);
    off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    if (data < 0 && !t->medium->device && errno == ENXIO)
        *at = to;
    if (data < 0 || hole < 0)
        return to;
    uint64_t page = (uint64_t)data & ~(PM_PAGE_SIZE - 1);
    uint64_t end = ((uint64_t)hole + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    *at = page > *at ? page : *at;
    *at = *at < to ? *at : to;
    return end < to ? end : to;
}

// Zeroes that the page cache shows need not be on the medium: whoever wrote them, as a try of this
// tool, may not have synced them, or the sync failed, and then a later one does not write them. So
// they are written again.
static bool write_zeroes(const struct pm_fixed_target *t, uint64_t at, uint64_t len) {
    static const char zeroes[64 * PM_PAGE_SIZE];
    for (uint64_t part; len; at += part, len -= part) {
        part = len < sizeof zeroes ? len : sizeof zeroes;
        if (!pm_os_write_all(t->medium->lock, zeroes, part, at))
            return false;
    }
    return true;
}

static int check_window(const struct pm_fixed_target *t, uint64_t at, uint64_t len,
                        struct pm_error *err) {
    char *map = mmap(pm_os_place(len), len, PROT_READ, MAP_SHARED, t->medium->fd, (off_t)at);
    if (map == MAP_FAILED)
        return pm_target_failed(t, "cannot map it", err);
    pm_view_note(map, len, t->medium->path, true, at);
    uint64_t byte = first_byte(map, len);
    int status = byte < len ? say_found(t->medium->path, map, at, byte, err) : PM_OK;
    if (status == PM_OK && (pm_durability != PM_DURABLE_PAGE || t->medium->device))
        pm_flush(map, len);
    else if (status == PM_OK && !write_zeroes(t, at, len))
        status = pm_target_failed(t, "cannot be written", err);
    pm_view_forget(map);
    munmap(map, len);
    return status;
}

int pm_target_make_zeroes(const struct pm_fixed_target *t, uint64_t from, uint64_t to,
                          struct pm_error *err) {
    for (uint64_t at = from, end; at < to; at = end) {
        end = next_data(t, &at, to);
        end = end - at < PM_TARGET_WINDOW ? end : at + PM_TARGET_WINDOW;
        if (end > at && check_window(t, at, end - at, err) != PM_OK)
            return err->status;
    }
    return pm_target_sync(t, NULL, 0) ? PM_OK : pm_target_failed(t, "cannot be written", err);
}

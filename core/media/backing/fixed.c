// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "fixed_layout.h"
#include "heap_part.h"
#include "media/journal/journal.h"
#include "media/persist.h"
#include "view.h"

struct pm_fixed pm_fixed;

// ---- the medium ---------------------------------------------------------------------------------

// Devices and files belong to root where an administrator has made them for a user.
int pm_fixed_check_owner(const char *path, const struct stat *st, struct pm_error *err) {
    if (st->st_uid != geteuid() && !(S_ISCHR(st->st_mode) && st->st_uid == 0))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to user %u, not to user %u; refusing to use it", path,
                       (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & (S_ISCHR(st->st_mode) ? 002u : 022u))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s can be written by others (mode %03o); run: chmod go-w '%s'", path,
                       (unsigned)st->st_mode & 0777, path);
    return PM_OK;
}

#define DEVICES "/dev/dax"

int pm_fixed_check_name(const char *path, struct pm_error *err) {
    struct stat st;
    if (strncmp(path, DEVICES, sizeof DEVICES - 1) != 0 || lstat(path, &st) == 0 || errno != ENOENT)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: there is no such device; `daxctl list` names those that there are", path);
}

uint64_t pm_fixed_device_number(int fd, const char *name) {
    char path[96], text[32] = "";
    struct stat st;
    if (fstat(fd, &st) != 0)
        return 0;
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/%s", major(st.st_rdev), minor(st.st_rdev),
             name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0)
        close(file);
    return got > 0 ? strtoull(text, NULL, 0) : 0;
}

int pm_fixed_open_gate(const struct stat *st) {
    char path[64];
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/", major(st->st_rdev), minor(st->st_rdev));
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

uint64_t pm_fixed_bytes(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return 0;
    return S_ISCHR(st.st_mode) ? pm_fixed_device_number(fd, "size") : (uint64_t)st.st_size;
}

// A device is mapped in whole units only.
const struct pm_layout *pm_fixed_peek(int fd, const char *path) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return NULL;
    errno = 0;
    uint64_t bytes = pm_fixed_bytes(fd);
    if (!bytes && errno && errno != ENOENT) // nobody knows how many they are
        return NULL;
    if (bytes < PM_FIXED_LEAST) {
        errno = ENODATA;
        return NULL;
    }
    const void *map =
        mmap(pm_os_place(PM_FIXED_ALIGN), PM_FIXED_ALIGN, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    pm_view_note(map, PM_FIXED_ALIGN, path, true, 0);
    return map;
}

void pm_fixed_unpeek(const struct pm_layout *layout) {
    pm_view_forget(layout);
    munmap((void *)(uintptr_t)layout, PM_FIXED_ALIGN);
}

// ---- what survives ------------------------------------------------------------------------------

static int choose_flush(const struct pm_medium *m, struct pm_error *err) {
    int forced = (int)pm_options.persist.number - 1;
    if (!m->device)
        return pm_persist_init(m->fd >= 0 ? m->fd : m->lock, forced, m->path, err);
    pm_persist_init_device(forced, m->path);
    return PM_OK;
}

// The first one comes last, so that it gives its name to what is said later.
int pm_fixed_persist(const struct pm_medium *medium, unsigned count, struct pm_error *err) {
    enum pm_durability found[PM_MEDIA];
    for (unsigned i = count; i-- > 0; found[i] = pm_durability)
        if (choose_flush(&medium[i], err) != PM_OK)
            return err->status;
    for (unsigned i = 1; i < count; i++)
        if (found[i] != found[0])
            return pm_fail(err, PM_OPERATIONAL,
                           "%s and %.300s are of different kinds (%s; %s): the files and devices "
                           "of one heap must survive the same failures",
                           medium[i].path, medium[0].path, pm_persist_guarantee(found[i]),
                           pm_persist_guarantee(found[0]));
    return PM_OK;
}

bool pm_fixed_read_state(int fd, struct pm_state *state) {
    const struct pm_layout *layout = pm_fixed_peek(fd, pm_heap.dir);
    struct pm_error ignored;
    if (!layout)
        return false;
    uint64_t at = layout->part[PM_JOURNAL_SUPER].at + offsetof(struct pm_super_file, state);
    bool good = pm_layout_check(layout, pm_heap.dir, &ignored) == PM_OK &&
                layout->part[PM_JOURNAL_SUPER].room && at + sizeof *state <= PM_FIXED_ALIGN;
    if (good)
        memcpy(state, (const char *)layout + at, sizeof *state);
    pm_fixed_unpeek(layout);
    return good;
}

// ---- the open heap ------------------------------------------------------------------------------

const struct pm_medium *pm_fixed_device(void) {
    for (PM_EACH_MEDIUM(m))
        if (pm_fixed.open && m->device)
            return m;
    return NULL;
}

struct pm_medium *pm_medium_of(const struct pm_file *part) {
    for (PM_EACH_MEDIUM(m))
        if ((uintptr_t)part->length - (uintptr_t)m->lengths < sizeof *m->lengths)
            return m;
    return pm_fixed.medium;
}

struct pm_file *pm_medium_part(unsigned medium, unsigned part) {
    if (part == PM_PART_BITMAPS)
        return &pm_heap.shard[medium].bitmaps;
    if (part == PM_PART_OBJECTS || part == PM_PART_OTHER_OBJECTS)
        return medium ? NULL : part & 1 ? &pm_heap.other_objects : &pm_heap.objects;
    return part < PM_JOURNAL_MEMBERS ? pm_heap_part(pm_journal_file(part, medium)) : NULL;
}

int pm_medium_fd(struct pm_medium *m) {
    if (pm_os_fd_is(m->fd, m->dev, m->ino))
        return m->fd;
    int fd = open(m->path, (pm_fixed.readonly ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC);
    if (!pm_os_fd_is(fd, m->dev, m->ino)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return m->fd = pm_os_fd_high(fd);
}

unsigned pm_fixed_node(unsigned shard, int recorded) {
    struct stat st;
    struct pm_medium *m = &pm_fixed.medium[shard];
    bool known = fstat(m->fd, &st) == 0;
    int node = !known ? -1 : m->device ? pm_node_of_dax(st.st_rdev) : pm_node_of_device(st.st_dev);
    return (node >= 0       ? (unsigned)node
            : recorded >= 0 ? (unsigned)recorded
                            : shard) %
           pm_nodes.count;
}

static void close_one(int fd, uint64_t dev, uint64_t ino) {
    if (pm_os_fd_is(fd, dev, ino)) // else the program has closed it, and may use its number
        pm_os_close(fd);
}

static void forget(struct pm_file *part) {
    part->fd = -1;
    part->map = NULL;
    part->length = NULL;
    part->at = part->room = 0;
}

// pm_heap.dir_fd, the lock of the first one, is the caller's to close.
void pm_fixed_close(void) {
    for (unsigned i = pm_fixed.count; i-- > 0;) {
        struct pm_medium *m = &pm_fixed.medium[i];
        for (unsigned part = 0; part < PM_PARTS; part++) {
            struct pm_file *file = pm_medium_part(i, part);
            if (file && file->length && pm_medium_of(file) == m)
                forget(file);
        }
        if (m->head)
            munmap(m->head, m->head_len);
        close_one(m->fd, m->dev, m->ino);
        close_one(m->gate, m->gate_dev, m->gate_ino);
        if (i)
            close_one(m->lock, m->dev, m->ino);
    }
    pm_fixed.count = 0;
    pm_fixed.open = false;
}

void pm_fixed_take_reports(void) {
    int saved = errno;
    for (unsigned i = 0; pm_fixed.open && i < pm_fixed.count; i++)
        syscall(SYS_fdatasync, pm_fixed.medium[i].lock);
    errno = saved;
}

bool pm_fixed_set_length(struct pm_file *file, uint64_t bytes) {
    bytes = (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    unsigned part = (unsigned)(file->length - pm_medium_of(file)->lengths->pages);
    if (bytes > file->room) {
        errno = ENOSPC;
        return false;
    }
    pm_commit_u64(file->length, pm_seal((uint32_t)(bytes >> PM_PAGE_SHIFT), PM_SALT_LENGTH(part)));
    file->size = bytes;
    return true;
}

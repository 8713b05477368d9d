// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "twin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "crc.h"
#include "extent_set.h"
#include "heap.h"
#include "os.h"
#include "persist.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#define NAMES_TRIED 100

// The superblock is the last.
static struct pm_file *const files[] = {&pm_heap.data,  &pm_heap.slabs, &pm_heap.log,
                                        &pm_heap.roots, &pm_heap.morph, &pm_heap.super_file};
#define FILES (sizeof files / sizeof files[0])

static bool is_there(size_t i) { return files[i] != &pm_heap.morph || pm_heap_morphs(); }

// The twin while it is made; afterwards, what the process had before.
static struct other {
    char dir[sizeof pm_heap.dir];
    int dir_fd;
    struct pm_file file[FILES];
} other;

// Names are made of the first heap's, however deep the tree of forks.
static char stem[sizeof pm_heap.dir];

static int reason(struct pm_error *err, const char *what) {
    return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s", other.dir, what, strerror(errno));
}

// ---- making ------------------------------------------------------------------------------------------

// Until its superblock has its name, the directory passes for a remnant, which whoever has the lock may remove:
// also just before we have it. Then errno is ENOENT.
static bool lock_dir(void) {
    struct stat by_fd, by_path;
    struct pm_error why;
    int fd = open(other.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    other.dir_fd = fd = pm_os_fd_high(fd);
    if (pm_dir_lock(fd, PM_OPEN_CREATE, true, &why) == PM_OK && fstat(fd, &by_fd) == 0 &&
        lstat(other.dir, &by_path) == 0) {
        if (by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev)
            return true;
        errno = ENOENT;
    }
    int saved = errno;
    close(fd);
    other.dir_fd = -1;
    errno = saved;
    return false;
}

static int make_dir(struct pm_error *err) {
    if (!stem[0])
        strcpy(stem, pm_heap.dir);
    for (unsigned n = 1; n <= NAMES_TRIED; n++) {
        int len = snprintf(other.dir, sizeof other.dir, n == 1 ? "%s.%d" : "%s.%d.%u", stem,
                           (int)getpid(), n);
        if (len >= (int)sizeof other.dir)
            return pm_fail(err, PM_OPERATIONAL, "%.60s...: the path is too long", stem);
        if (mkdir(other.dir, 0700) == 0) {
            if (lock_dir())
                return PM_OK;
            if (errno != ENOENT) {
                reason(err, ".");
                rmdir(other.dir);
                return err->status;
            }
        } else if (errno != EEXIST) {
            break;
        }
    }
    return pm_fail(err, PM_OPERATIONAL, "%s: cannot make the directory of the child's heap: %s",
                   other.dir, strerror(errno));
}

static int make_file(size_t i, struct pm_error *err) {
    struct stat st;
    struct pm_file *twin = &other.file[i];
    const char *name = files[i] == &pm_heap.super_file ? "superblock.new" : files[i]->name;
    *twin = *files[i];
    twin->fd = pm_os_fd_high(
        openat(other.dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (twin->fd < 0 || fstat(twin->fd, &st) != 0)
        return reason(err, name);
    twin->dev = st.st_dev;
    twin->ino = st.st_ino;
    return PM_OK;
}

static bool write_all(int fd, const void *data, size_t len, uint64_t at) {
    for (const char *p = data; len;) {
        ssize_t put = pwrite(fd, p, len, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        p += put, len -= (size_t)put, at += (uint64_t)put;
    }
    return true;
}

// A store to what the first heap has allocated cannot fail for lack of space, so it must not here.
static bool copy_extents(int fd) {
    struct pm_written known = {0};
    for (uint32_t i = 1; i < pm_extent_top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state != PM_EXTENT_ACTIVE)
            continue;
        uint64_t at = e->page << PM_PAGE_SHIFT, end = at + pm_extent_bytes(e), part;
        if (e->backed && fallocate(fd, 0, (off_t)at, (off_t)(end - at)) != 0 && errno != EOPNOTSUPP)
            return false;
        for (; at < end && (part = pm_heap_next_data(&known, &at, end)) != 0; at += part)
            if (!write_all(fd, pm_heap_at(at), part, at))
                return false;
    }
    return true;
}

static bool copy_whole(const struct pm_file *file, int fd) {
    if (file->size == 0)
        return true;
    // The roots file is not mapped in one piece.
    void *map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return false;
    bool good = write_all(fd, map, file->size, 0);
    munmap(map, file->size);
    return good;
}

// Another heap, owned by this process, and not closed.
static bool write_identity(int fd) {
    struct pm_superblock super = pm_heap.super->super;
    uint64_t state = PM_STATE_DIRTY, owner = (uint64_t)getpid();
    uint64_t start = pm_os_start_time(getpid());
    size_t at = offsetof(struct pm_super_file, state);
    if (getrandom(super.uuid, sizeof super.uuid, GRND_NONBLOCK) != (ssize_t)sizeof super.uuid)
        memcpy(super.uuid, &owner, sizeof owner);
    super.crc = pm_crc32c(0, &super, offsetof(struct pm_superblock, crc));
    return write_all(fd, &super, sizeof super, 0) &&
           write_all(fd, &state, sizeof state, at + offsetof(struct pm_state, state)) &&
           write_all(fd, &owner, sizeof owner, at + offsetof(struct pm_state, owner_pid)) &&
           write_all(fd, &start, sizeof start, at + offsetof(struct pm_state, owner_start));
}

static int fill_file(size_t i, struct pm_error *err) {
    const struct pm_file *file = files[i];
    int fd = other.file[i].fd;
    bool good = pm_file_ready(files[i]);
    if (file == &pm_heap.data) {
        good = good && pm_os_file_size(pm_heap.frontier) &&
               ftruncate(fd, (off_t)pm_heap.frontier) == 0 && copy_extents(fd);
        other.file[i].size = pm_heap.frontier;
    } else {
        good = good && pm_os_file_size(file->size) && copy_whole(file, fd);
    }
    if (good && file == &pm_heap.super_file)
        good = write_identity(fd);
    good = good && (pm_durability == PM_DURABLE_NONE || fsync(fd) == 0);
    return good ? PM_OK : reason(err, file->name);
}

static int give_name(struct pm_error *err) {
    struct pm_error why;
    if (pm_dir_lock(other.file[FILES - 1].fd, PM_OPEN_CREATE, false, &why) != PM_OK)
        return reason(err, "lock");
    if (renameat(other.dir_fd, "superblock.new", other.dir_fd, "superblock") != 0 ||
        (pm_durability != PM_DURABLE_NONE && fsync(other.dir_fd) != 0))
        return reason(err, "superblock");
    return PM_OK;
}

static void close_other(void) {
    for (size_t i = 0; i < FILES; i++)
        if (other.file[i].fd >= 0)
            close(other.file[i].fd);
    if (other.dir_fd >= 0)
        close(other.dir_fd);
    other.dir_fd = -1;
}

static void remove_other(void) {
    pm_dir_empty(other.dir_fd);
    rmdir(other.dir);
}

// ---- the change ---------------------------------------------------------------------------------------

static bool map_file(const struct pm_file *twin, bool *changed) {
    if (!twin->map)
        return true;
    int flags = MAP_FIXED | MAP_NORESERVE, prot = PROT_READ | PROT_WRITE;
    if (pm_file_map(twin, twin->map, twin->reach, prot, flags, 0) == MAP_FAILED)
        return false;
    *changed = true;
    return true;
}

// The same addresses, for everything points there.
static int move_in(struct pm_error *err) {
    bool changed = false, good = true;
    for (size_t i = 0; good && i < FILES; i++)
        good = map_file(&other.file[i], &changed);
    if (!good && !changed)
        return reason(err, "mmap");
    for (size_t i = 0; i < FILES; i++) {
        if (!is_there(i))
            continue;
        struct pm_file before = *files[i];
        *files[i] = other.file[i];
        other.file[i] = before;
    }
    char name[sizeof other.dir];
    int fd = pm_heap.dir_fd;
    strcpy(name, pm_heap.dir);
    strcpy(pm_heap.dir, other.dir);
    strcpy(other.dir, name);
    pm_dir_adopt(other.dir_fd);
    other.dir_fd = fd;
    // Half of one heap and half of the other is none; both are whole on disk.
    if (!good)
        pm_refuse("fork: cannot map %s: %s", pm_heap.dir, strerror(errno));
    pm_extent_purge_to(0); // what was kept for reuse has not been copied
    return PM_OK;
}

int pm_twin_make(struct pm_error *err) {
    (void)pm_dir_ready(); // a daemon may have closed it, and it is to be exchanged
    other.dir_fd = -1;
    for (size_t i = 0; i < FILES; i++)
        other.file[i].fd = -1;
    int status = make_dir(err);
    if (status != PM_OK)
        return status;
    // The superblock's new name first, which makes a remnant of what an interruption leaves.
    for (size_t i = FILES; i-- > 0 && status == PM_OK;)
        if (is_there(i))
            status = make_file(i, err);
    for (size_t i = 0; i < FILES && status == PM_OK; i++)
        if (is_there(i))
            status = fill_file(i, err);
    if (status == PM_OK)
        status = give_name(err);
    if (status == PM_OK)
        status = move_in(err);
    if (status != PM_OK) {
        remove_other();
        close_other();
    }
    return status;
}

// ---- afterwards --------------------------------------------------------------------------------------

void pm_twin_part(void) { close_other(); }

static long rename2(const char *from, const char *to, unsigned flags) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}

// Where the file system cannot exchange two names there is a moment without the first: then a start would make a new
// heap, and nothing is lost, for both stand beside it.
static bool exchange(char *aside) {
    strcpy(aside, pm_heap.dir);
    if (rename2(pm_heap.dir, other.dir, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS)
        return false;
    size_t len = strlen(aside);
    if (len + sizeof ".old" > sizeof other.dir)
        return false;
    memcpy(aside + len, ".old", sizeof ".old");
    if (rename(other.dir, aside) != 0)
        return false;
    if (rename(pm_heap.dir, other.dir) == 0)
        return true;
    int saved = errno;
    rename(aside, other.dir);
    errno = saved;
    return false;
}

// A name lasts once its directory does.
static bool names_durable(void) {
    char parent[sizeof other.dir];
    if (pm_durability == PM_DURABLE_NONE)
        return true;
    strcpy(parent, other.dir);
    char *slash = strrchr(parent, '/');
    *(slash && slash > parent ? slash : parent + 1) = '\0';
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

int pm_twin_take_place(struct pm_error *err) {
    static char aside[sizeof other.dir];
    struct stat by_fd, by_path;
    bool good, there = lstat(other.dir, &by_path) == 0;
    if (!there) {
        // Removed at its owner's end.
        good = rename2(pm_heap.dir, other.dir, RENAME_NOREPLACE) == 0;
    } else if (fstat(other.dir_fd, &by_fd) != 0 || by_fd.st_ino != by_path.st_ino ||
               by_fd.st_dev != by_path.st_dev) {
        good = false;
        errno = EEXIST;
    } else {
        good = exchange(aside);
    }
    if (!good)
        pm_fail(err, PM_OPERATIONAL, "cannot take the place of %.200s: %s; the heap is %.200s now",
                other.dir, strerror(errno), pm_heap.dir);
    if (good)
        strcpy(pm_heap.dir, other.dir);
    if (good && there && names_durable() && pm_dir_empty(other.dir_fd))
        rmdir(aside);
    close_other();
    return good ? PM_OK : err->status;
}

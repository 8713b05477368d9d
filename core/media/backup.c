// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/os.h"
#include "base/os_file.h"
#include "heap.h"

static bool is_there(int fd, const char *name) {
    struct stat st;
    return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

enum pm_backup_state pm_backup_state_headless(int fd) {
    if (is_there(fd, PM_BACKUP_SUPERBLOCK))
        return PM_BACKUP_IS_LAYERED;
    return is_there(fd, PM_BACKUP_UNFINISHED) ? PM_BACKUP_IS_UNFINISHED : PM_BACKUP_IS_NONE;
}

enum pm_backup_state pm_backup_state(int fd) {
    if (!is_there(fd, pm_heap_files[PM_ROW_super_file].name))
        return pm_backup_state_headless(fd);
    return is_there(fd, PM_BACKUP_CHECKSUMS) ? PM_BACKUP_IS_PLAIN : PM_BACKUP_IS_NONE;
}

bool pm_backup_name(const char *name) {
    return strcmp(name, PM_BACKUP_CHECKSUMS) == 0 || strcmp(name, PM_BACKUP_NEW_CHECKSUMS) == 0 ||
           strcmp(name, PM_BACKUP_INCREMENTS) == 0 || strcmp(name, PM_BACKUP_SUPERBLOCK) == 0 ||
           strcmp(name, PM_BACKUP_UNFINISHED) == 0;
}

// ---- reading ------------------------------------------------------------------------------------

static ssize_t read_at(int fd, void *to, size_t len, uint64_t at) {
    ssize_t got;
    do
        got = pread(fd, to, len, (off_t)at);
    while (got < 0 && errno == EINTR);
    return got;
}

static int damaged(const char *what, uint64_t at, const char *why, struct pm_error *err) {
    return pm_fail(err, PM_DAMAGE,
                   "%s, byte %lu: %s; this backup is damaged: make another one, in another "
                   "directory",
                   what, (unsigned long)at, why);
}

static int read_failed(const char *what, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s: %s", what, pm_strerror(errno));
}

// Where the files of the increment say that no block lies, nothing may be written.
static bool is_sound(const struct pm_backup_index *x) {
    uint64_t seen = 0;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_file *f = &x->files[i];
        bool known = false, gone = f->length == PM_BACKUP_GONE;
        for (size_t row = 0; row < PM_HEAP_FILES && f->name[sizeof f->name - 1] == 0; row++)
            known |= strcmp(pm_heap_files[row].name, f->name) == 0;
        if (!known || f->entries > x->head.entries - seen || (gone && f->entries) ||
            (!gone && f->length > PM_SHARD_RANGE))
            return false;
        for (uint64_t k = 0; k < f->entries; k++)
            if ((uint64_t)(x->entries[seen + k].block & ~PM_BACKUP_HOLE) * PM_BACKUP_BLOCK >=
                f->length)
                return false;
        seen += f->entries;
    }
    return seen == x->head.entries;
}

static int check_index(struct pm_backup_index *x, uint64_t at, bool has_data, uint64_t size,
                       const char *what, struct pm_error *err) {
    const char *index = (const char *)x->map + sizeof x->head;
    uint64_t bytes = x->map_len - sizeof x->head;
    x->files = (const void *)index;
    x->entries = (const void *)(x->files + x->head.files);
    if (pm_crc32c(0, index, bytes) != x->head.index_crc || !is_sound(x))
        return damaged(what, at, "the index of a round is wrong", err);
    x->data = x->next = at + pm_backup_align(x->map_len);
    for (uint64_t i = 0; has_data && i < x->head.entries; i++)
        x->blocks += !(x->entries[i].block & PM_BACKUP_HOLE);
    x->next += x->blocks * PM_BACKUP_BLOCK;
    if (has_data && x->blocks && x->next > size)
        return damaged(what, at, "the file ends within the data of a round", err);
    return PM_OK;
}

int pm_backup_read(int fd, uint64_t at, bool has_data, const char *what, struct pm_backup_index *x,
                   struct pm_error *err) {
    struct stat st;
    *x = (struct pm_backup_index){0};
    if (fstat(fd, &st) != 0)
        return read_failed(what, err);
    ssize_t got = read_at(fd, &x->head, sizeof x->head, at);
    if (got < 0)
        return read_failed(what, err);
    if (got < (ssize_t)sizeof x->head || x->head.magic == 0)
        return PM_NEEDS_RECOVERY;
    uint64_t size = (uint64_t)st.st_size;
    uint64_t bytes = pm_backup_record_bytes(x->head.files, x->head.entries);
    if (x->head.magic != PM_BACKUP_MAGIC ||
        x->head.crc != pm_crc32c(0, &x->head, offsetof(struct pm_backup_record, crc)) ||
        x->head.entries > size || bytes > size - at)
        return damaged(what, at, "the header of a round is wrong", err);
    x->map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)at);
    x->map_len = bytes;
    if (x->map == MAP_FAILED)
        return read_failed(what, err);
    int status = check_index(x, at, has_data, size, what, err);
    if (status != PM_OK)
        pm_backup_close(x);
    return status;
}

void pm_backup_close(struct pm_backup_index *x) { munmap(x->map, x->map_len); }

// ---- folding ------------------------------------------------------------------------------------

// The kernel shares the blocks where the file system can, and copies them elsewhere.
static bool copy_range(int from, uint64_t at, int to, uint64_t put, uint64_t len) {
    char buffer[16384];
    while (len) {
        loff_t in = (loff_t)at, out = (loff_t)put;
        ssize_t done = copy_file_range(from, &in, to, &out, len, 0);
        if (done <= 0) {
            size_t part = len < sizeof buffer ? len : sizeof buffer;
            done = read_at(from, buffer, part, at);
            if (done > 0 && !pm_os_write_all(to, buffer, (size_t)done, put))
                return false;
        }
        if (done == 0)
            errno = EIO; // shorter than it was
        if (done <= 0)
            return false;
        at += (uint64_t)done;
        put += (uint64_t)done;
        len -= (uint64_t)done;
    }
    return true;
}

static bool make_hole(int fd, uint64_t at, uint64_t len) {
    static const char zeroes[PM_BACKUP_BLOCK];
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)len) == 0)
        return true;
    for (uint64_t done = 0; done < len; done += sizeof zeroes)
        if (!pm_os_write_all(fd, zeroes, sizeof zeroes, at + done))
            return false;
    return true;
}

// How many of the entries lie in a row, of one kind.
static uint64_t run_of(const struct pm_backup_entry *e, uint64_t count) {
    uint64_t n = 1;
    while (n < count && e[n].block == e->block + n)
        n++;
    return n;
}

// Writes the blocks of one file. *data: where they begin in the increments; moves on.
static bool fold_file(int from, const struct pm_backup_file *f, const struct pm_backup_entry *e,
                      int fd, uint64_t *data) {
    if (!pm_os_file_size(f->length))
        return false;
    for (uint64_t i = 0, n; i < f->entries; i += n) {
        n = run_of(e + i, f->entries - i);
        uint64_t at = (uint64_t)(e[i].block & ~PM_BACKUP_HOLE) * PM_BACKUP_BLOCK;
        uint64_t len = n * PM_BACKUP_BLOCK;
        bool hole = (e[i].block & PM_BACKUP_HOLE) != 0;
        if (hole ? !make_hole(fd, at, len) : !copy_range(from, *data, fd, at, len))
            return false;
        *data += hole ? 0 : len;
    }
    return ftruncate(fd, (off_t)f->length) == 0;
}

static const char *layered_name(const char *name) {
    return strcmp(name, pm_heap_files[PM_ROW_super_file].name) == 0 ? PM_BACKUP_SUPERBLOCK : name;
}

static int fold_failed(const char *dir, const char *name, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL,
                   "%.200s/%s: the increments of this backup cannot be folded in: %s; nothing is "
                   "lost: open it again when that is mended",
                   dir, name, pm_strerror(errno));
}

static int fold_increment(int from, const struct pm_backup_index *x, int dir_fd, const char *dir,
                          struct pm_error *err) {
    const struct pm_backup_entry *e = x->entries;
    uint64_t data = x->data;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_file *f = &x->files[i];
        const char *name = layered_name(f->name);
        if (f->length == PM_BACKUP_GONE) {
            if (unlinkat(dir_fd, name, 0) != 0 && errno != ENOENT)
                return fold_failed(dir, name, err);
            continue;
        }
        int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        bool good = fd >= 0 && fold_file(from, f, e, fd, &data);
        if (!good)
            fold_failed(dir, name, err);
        if (fd >= 0)
            close(fd);
        if (!good)
            return err->status;
        e += f->entries;
    }
    return PM_OK;
}

static int fold_all(int from, int dir_fd, const char *dir, struct pm_error *err) {
    char what[sizeof pm_heap.dir + 32];
    struct pm_backup_index x;
    uint64_t round = 0;
    int status = PM_OK;
    snprintf(what, sizeof what, "%.300s/" PM_BACKUP_INCREMENTS, dir);
    for (uint64_t at = 0; status == PM_OK; at = x.next) {
        status = pm_backup_read(from, at, true, what, &x, err);
        if (status != PM_OK)
            break;
        if (round && x.head.round != round + 1)
            status = damaged(what, at, "a round is missing", err);
        round = x.head.round;
        if (status == PM_OK)
            status = fold_increment(from, &x, dir_fd, dir, err);
        pm_backup_close(&x);
    }
    return status == PM_NEEDS_RECOVERY ? PM_OK : status;
}

// Each file that a backup may have, if it is there.
static int sync_files(int dir_fd, const char *dir, struct pm_error *err) {
    for (size_t i = 0; i < PM_HEAP_FILES; i++) {
        const char *name = layered_name(pm_heap_files[i].name);
        int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        bool good = fd >= 0 && fsync(fd) == 0;
        if (!good)
            fold_failed(dir, name, err);
        if (fd >= 0)
            close(fd);
        if (!good)
            return err->status;
    }
    return PM_OK;
}

int pm_backup_fold(int dir_fd, const char *dir, struct pm_error *err) {
    const char *super = pm_heap_files[PM_ROW_super_file].name;
    int status = PM_OK;
    int from = openat(dir_fd, PM_BACKUP_INCREMENTS, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0 && errno != ENOENT)
        return fold_failed(dir, PM_BACKUP_INCREMENTS, err);
    if (from >= 0) {
        status = fold_all(from, dir_fd, dir, err);
        close(from);
    }
    if (status == PM_OK)
        status = sync_files(dir_fd, dir, err);
    if (status == PM_OK &&
        (fsync(dir_fd) != 0 || renameat(dir_fd, PM_BACKUP_SUPERBLOCK, dir_fd, super) != 0 ||
         fsync(dir_fd) != 0))
        status = fold_failed(dir, super, err);
    return status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_verify.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "media/heap.h"

struct check {
    const struct target *target;
    pm_progress *progress;
    int increments; // -1: there are none
    int fd;         // of the file
    bool missing;   // all of it is in the increments
    const char *name;
    uint64_t *read, total;
};

static bool is_layered(const struct check *c) { return c->target->state == PM_BACKUP_IS_LAYERED; }

static int wrong(const struct check *c, const char *what, uint64_t block, struct pm_error *err) {
    return pm_fail(err, PM_DAMAGE,
                   "%.300s/%s, byte %lu: %s; this backup is damaged: make another one, in another "
                   "directory",
                   c->target->dir, c->name, (unsigned long)(block * PM_BACKUP_BLOCK), what);
}

// Once the increments are folded in, every block lies in the file itself.
static int check_block(struct check *c, const struct kept_file *f, uint64_t block,
                       struct pm_error *err) {
    char data[PM_BACKUP_BLOCK];
    struct pm_backup_place place = pm_backup_place(&f->places, block);
    bool layered = is_layered(c) && place.at != PM_BACKUP_IN_FILE;
    uint64_t at = layered ? place.at : block * PM_BACKUP_BLOCK;
    if (!is_layered(c))
        place.bytes = PM_BACKUP_BLOCK;
    if (pm_backup_read_block(layered ? c->increments : c->fd, at, place, data) < 0)
        return target_failed(c->target, layered ? PM_BACKUP_INCREMENTS : c->name, err);
    *c->read += PM_BACKUP_BLOCK;
    if (c->progress)
        c->progress("check", *c->read, c->total);
    return pm_backup_sum(data) == f->sum[block]
               ? PM_OK
               : wrong(c, "the checksum of a block is wrong", block, err);
}

// Where the checksums have a hole, the file has one, or zeroes. Blocks that increments have
// replaced or cut off are left out until these are folded in.
static int check_holes(const struct check *c, const struct kept_file *f, struct pm_error *err) {
    char data[PM_BACKUP_BLOCK];
    struct pm_backup_place whole = {.bytes = PM_BACKUP_BLOCK};
    off_t at = 0, end;
    for (; (at = lseek(c->fd, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(c->fd, at, SEEK_HOLE);
        if (end < 0)
            return target_failed(c->target, c->name, err);
        for (uint64_t b = (uint64_t)at / PM_BACKUP_BLOCK; b < kept_blocks((uint64_t)end); b++) {
            if (kept_sum_of(f, b) || (is_layered(c) && !pm_backup_stands(&f->places, b)))
                continue;
            if (pm_backup_read_block(c->fd, b * PM_BACKUP_BLOCK, whole, data) < 0)
                return target_failed(c->target, c->name, err);
            if (pm_backup_sum(data))
                return wrong(c, "data where there was a hole", b, err);
        }
    }
    return errno == ENXIO ? PM_OK : target_failed(c->target, c->name, err);
}

// Folding that was cut short leaves any length that some round has had, or one in between.
static bool length_fits(const struct check *c, const struct kept_file *f, uint64_t length) {
    return is_layered(c) && f->places.named
               ? length >= f->shortest && length <= pm_backup_align(f->longest)
               : length == f->length;
}

static int check_open_file(struct check *c, const struct kept_file *f, struct pm_error *err) {
    struct stat st;
    int status = PM_OK;
    if (fstat(c->fd, &st) != 0)
        return target_failed(c->target, c->name, err);
    if (!c->missing && !length_fits(c, f, (uint64_t)st.st_size))
        return wrong(c, "the length of the file is wrong", kept_blocks((uint64_t)st.st_size), err);
    for (uint64_t b = 0; b < f->blocks && status == PM_OK; b++)
        if (kept_sum_of(f, b))
            status = check_block(c, f, b, err);
    return status == PM_OK && !c->missing ? check_holes(c, f, err) : status;
}

static int check_file(struct check *c, size_t row, struct pm_error *err) {
    const struct kept_file *f = &c->target->kept.file[row];
    bool layered = is_layered(c);
    c->name = layered && row == PM_ROW_super_file ? PM_BACKUP_SUPERBLOCK : pm_heap_files[row].name;
    if (!f->there)
        return PM_OK;
    c->fd = openat(c->target->fd, c->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    // It came after the first round, or was gone once. Folding makes it.
    c->missing = c->fd < 0 && errno == ENOENT && layered && f->missing;
    if (c->missing)
        c->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (c->fd < 0)
        return errno == ENOENT ? wrong(c, "the file is missing", 0, err)
                               : target_failed(c->target, c->name, err);
    int status = check_open_file(c, f, err);
    close(c->fd);
    return status;
}

int backup_verify(const struct target *t, pm_progress *progress, uint64_t *read,
                  struct pm_error *err) {
    struct check c = {.target = t, .progress = progress, .increments = -1, .read = read};
    int status = t->state == PM_BACKUP_IS_PLAIN ? target_unused(t, err) : PM_OK;
    *read = 0;
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        for (uint64_t b = 0; b < t->kept.file[row].blocks; b++)
            c.total += t->kept.file[row].sum[b] ? PM_BACKUP_BLOCK : 0;
    if (t->kept.increments) {
        c.increments = openat(t->fd, PM_BACKUP_INCREMENTS, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (c.increments < 0)
            return target_failed(t, PM_BACKUP_INCREMENTS, err);
    }
    for (size_t row = 0; row < PM_HEAP_FILES && status == PM_OK; row++)
        status = check_file(&c, row, err);
    if (c.increments >= 0)
        close(c.increments);
    return status;
}

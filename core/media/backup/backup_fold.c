// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Folding: the increments of a backup go into its files. All of them are read and checked before
// the first byte is written, so a damaged backup stays as it is.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backup.h"
#include "backup_places.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/heap.h"

struct fold {
    int from; // backup.increments; -1: there is none
    int dir_fd;
    const char *dir;
    char what[sizeof pm_heap.dir + 32]; // the path of the increments
    struct pm_backup_rounds rounds;
    // By the rows of the table. Blocks that a later increment has replaced are not looked at: their
    // space was given back.
    struct pm_backup_places places[PM_HEAP_FILES];
    // Descriptors of the files that were written, each plus 1, from the first write to the sync;
    // 0: not open. The kernel tells of a failed write-back once, and may forget it where no
    // descriptor is open.
    int written[PM_HEAP_FILES];
};

// ---- writing ------------------------------------------------------------------------------------

// The kernel shares the blocks where the file system can, and copies them elsewhere.
static bool copy_range(int from, uint64_t at, int to, uint64_t put, uint64_t len) {
    char buffer[16384];
    while (len) {
        loff_t in = (loff_t)at, out = (loff_t)put;
        ssize_t done = copy_file_range(from, &in, to, &out, len, 0);
        if (done <= 0) {
            size_t part = len < sizeof buffer ? len : sizeof buffer;
            done = pread(from, buffer, part, (off_t)at);
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

static size_t row_of(const char *name) {
    size_t row = 0;
    while (strcmp(pm_heap_files[row].name, name) != 0) // pm_backup_read() lets no other name pass
        row++;
    return row;
}

static int open_written(struct fold *fold, size_t row) {
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    const char *name = layered_name(pm_heap_files[row].name);
    if (!fold->written[row]) {
        fold->written[row] = 1 + openat(fold->dir_fd, name, flags, 0600);
        if (fold->written[row]) // an earlier fold may have failed to write
            pm_os_forget_pages(fold->written[row] - 1);
    }
    return fold->written[row] - 1;
}

static void close_written(struct fold *fold, size_t row) {
    if (fold->written[row])
        close(fold->written[row] - 1);
    fold->written[row] = 0;
}

static int fold_increment(struct fold *fold, const struct pm_backup_index *x,
                          struct pm_error *err) {
    const struct pm_backup_entry *e = x->entries;
    uint64_t data = x->data;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_file *f = &x->files[i];
        const char *name = layered_name(f->name);
        size_t row = row_of(f->name);
        if (f->length == PM_BACKUP_GONE) {
            close_written(fold, row);
            if (unlinkat(fold->dir_fd, name, 0) != 0 && errno != ENOENT)
                return fold_failed(fold->dir, name, err);
            continue;
        }
        int fd = open_written(fold, row);
        if (fd < 0 || !fold_file(fold->from, f, e, fd, &data))
            return fold_failed(fold->dir, name, err);
        e += f->entries;
    }
    return PM_OK;
}

// Each file that was written, if all went well, and closes it.
static int sync_written(struct fold *fold, int status, struct pm_error *err) {
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        if (status == PM_OK && fold->written[row] && fsync(fold->written[row] - 1) != 0)
            status = fold_failed(fold->dir, layered_name(pm_heap_files[row].name), err);
        close_written(fold, row);
    }
    return status;
}

// ---- checking -----------------------------------------------------------------------------------

static int note_places(struct fold *fold, const struct pm_backup_index *x, struct pm_error *err) {
    const struct pm_backup_entry *e = x->entries;
    uint64_t data = x->data;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_file *f = &x->files[i];
        if (!pm_backup_note(&fold->places[row_of(f->name)], f, e, &data))
            return fold_failed(fold->dir, f->name, err);
        e += f->entries;
    }
    return PM_OK;
}

static int check_block(const struct fold *fold, const struct pm_backup_entry *e,
                       struct pm_backup_place place, struct pm_error *err) {
    char block[PM_BACKUP_BLOCK];
    ssize_t got = pm_backup_read_block(fold->from, place.at, place, block);
    if (got < 0)
        return fold_failed(fold->dir, PM_BACKUP_INCREMENTS, err);
    return got == (ssize_t)sizeof block && pm_backup_sum(block) == pm_backup_entry_sum(e)
               ? PM_OK
               : pm_backup_damaged(fold->what, place.at, "the checksum of a block is wrong", err);
}

static int check_blocks(struct fold *fold, const struct pm_backup_index *x, struct pm_error *err) {
    const struct pm_backup_entry *e = x->entries;
    uint64_t data = x->data;
    int status = PM_OK;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_places *places = &fold->places[row_of(x->files[i].name)];
        for (uint64_t k = 0; k < x->files[i].entries && status == PM_OK; k++, e++) {
            if (e->block & PM_BACKUP_HOLE)
                continue;
            struct pm_backup_place place = pm_backup_place(places, e->block);
            if (place.at == data)
                status = check_block(fold, e, place, err);
            data += PM_BACKUP_BLOCK;
        }
    }
    return status;
}

// ---- the first round ----------------------------------------------------------------------------

static int check_base_file(const struct fold *fold, const struct pm_backup_file *f,
                           const struct pm_backup_entry *e, struct pm_error *err) {
    char what[sizeof fold->what], block[PM_BACKUP_BLOCK];
    const char *name = layered_name(f->name);
    const struct pm_backup_places *places = &fold->places[row_of(f->name)];
    int status = PM_OK, fd = openat(fold->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return fold_failed(fold->dir, name, err);
    snprintf(what, sizeof what, "%.300s/%s", fold->dir, name);
    for (uint64_t i = 0; i < f->entries && status == PM_OK; i++, e++) {
        uint64_t at = (uint64_t)e->block * PM_BACKUP_BLOCK;
        if (e->block & PM_BACKUP_HOLE || !pm_backup_stands(places, e->block))
            continue;
        struct pm_backup_place place = pm_backup_place(places, e->block);
        ssize_t got = fd < 0 ? 0 : pm_backup_read_block(fd, at, place, block);
        if (fd < 0)
            status = pm_backup_damaged(what, at, "the file is missing", err);
        else if (got < 0)
            status = fold_failed(fold->dir, name, err);
        else if (got == 0)
            status = pm_backup_damaged(what, at, "the file is too short", err);
        else if (pm_backup_sum(block) != pm_backup_entry_sum(e))
            status = pm_backup_damaged(what, at, "the checksum of a block is wrong", err);
    }
    if (fd >= 0)
        close(fd);
    return status;
}

// What no increment has replaced.
static int check_base(const struct fold *fold, struct pm_error *err) {
    char what[sizeof fold->what];
    struct pm_backup_index x;
    int fd = openat(fold->dir_fd, PM_BACKUP_CHECKSUMS, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fold_failed(fold->dir, PM_BACKUP_CHECKSUMS, err);
    snprintf(what, sizeof what, "%.300s/" PM_BACKUP_CHECKSUMS, fold->dir);
    int status = pm_backup_read(fd, 0, false, what, &x, err);
    close(fd);
    if (status != PM_OK)
        return status == PM_NEEDS_RECOVERY ? pm_backup_damaged(what, 0, "it is empty", err)
                                           : status;
    const struct pm_backup_entry *e = x.entries;
    for (uint32_t i = 0; i < x.head.files && status == PM_OK; i++) {
        if (x.files[i].length != PM_BACKUP_GONE)
            status = check_base_file(fold, &x.files[i], e, err);
        e += x.files[i].entries;
    }
    pm_backup_close(&x);
    return status;
}

// ---- all increments -----------------------------------------------------------------------------

typedef int step_fn(struct fold *fold, const struct pm_backup_index *x, struct pm_error *err);

static int each_increment(struct fold *fold, step_fn *step, struct pm_error *err) {
    struct pm_backup_index x;
    uint64_t last = 0, at = 0;
    int status = PM_OK;
    for (; fold->from >= 0; at = x.next) {
        status = pm_backup_read(fold->from, at, true, fold->what, &x, err);
        if (status != PM_OK)
            break;
        status = pm_backup_check_round(&fold->rounds, &x, last, at, fold->what, err);
        last = x.head.round;
        if (status == PM_OK)
            status = step(fold, &x, err);
        pm_backup_close(&x);
        if (status != PM_OK)
            return status;
    }
    return status == PM_OK || status == PM_NEEDS_RECOVERY
               ? pm_backup_check_last(&fold->rounds, last, at, fold->what, err)
               : status;
}

static int fold_all(struct fold *fold, struct pm_error *err) {
    int status = pm_backup_read_rounds(fold->dir_fd, fold->dir, &fold->rounds, err);
    if (status == PM_OK)
        status = each_increment(fold, note_places, err);
    if (status == PM_OK)
        status = each_increment(fold, check_blocks, err);
    if (status == PM_OK)
        status = check_base(fold, err);
    if (status == PM_OK)
        status = sync_written(fold, each_increment(fold, fold_increment, err), err);
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        pm_backup_forget(&fold->places[row]);
    return status;
}

int pm_backup_fold(int dir_fd, const char *dir, struct pm_error *err) {
    const char *super = pm_heap_files[PM_ROW_super_file].name;
    struct fold fold = {.dir_fd = dir_fd, .dir = dir};
    snprintf(fold.what, sizeof fold.what, "%.300s/" PM_BACKUP_INCREMENTS, dir);
    fold.from = openat(dir_fd, PM_BACKUP_INCREMENTS, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fold.from < 0 && errno != ENOENT)
        return fold_failed(dir, PM_BACKUP_INCREMENTS, err);
    int status = fold_all(&fold, err);
    if (fold.from >= 0)
        close(fold.from);
    if (status == PM_OK &&
        (fsync(dir_fd) != 0 || renameat(dir_fd, PM_BACKUP_SUPERBLOCK, dir_fd, super) != 0 ||
         fsync(dir_fd) != 0))
        status = fold_failed(dir, super, err);
    return status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os_file.h"

// ---- loading ------------------------------------------------------------------------------------

static int no_memory(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "no memory for the checksums of the backup");
}

// Room for `blocks`; those that are new are holes.
static bool reach(struct kept_file *f, uint64_t blocks) {
    if (blocks <= f->blocks)
        return true;
    uint64_t room = f->blocks ? blocks + blocks / 4 : blocks;
    uint64_t *sum = calloc(room, sizeof *sum);
    if (!sum)
        return false;
    if (f->blocks)
        memcpy(sum, f->sum, f->blocks * sizeof *sum);
    free(f->sum);
    f->sum = sum;
    f->blocks = room;
    return true;
}

static void forget_from(struct kept_file *f, uint64_t block) {
    for (; block < f->blocks; block++)
        if (f->sum[block])
            f->sum[block] = 0;
}

static struct kept_file *file_named(struct kept *kept, const char *name) {
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        if (strcmp(pm_heap_files[i].name, name) == 0)
            return &kept->file[i];
    return NULL; // pm_backup_read() lets no other name pass
}

static void note_length(struct kept_file *f, uint64_t length, bool first) {
    f->shortest = first || length < f->shortest ? length : f->shortest;
    f->longest = length > f->longest ? length : f->longest;
}

// `data`: where its blocks begin; NULL: they lie in the files.
static bool apply_file(struct kept_file *f, const struct pm_backup_file *in,
                       const struct pm_backup_entry *e, uint64_t *data) {
    f->there = in->length != PM_BACKUP_GONE;
    f->length = f->there ? in->length : 0;
    f->missing = data ? f->missing || !f->there : !f->there;
    note_length(f, f->length, !data);
    // Not by the length: a wrong one may be a million times what is there.
    if ((data && !pm_backup_note(&f->places, in, e, data)) || !reach(f, pm_backup_blocks_of(in, e)))
        return false;
    forget_from(f, kept_blocks(f->length));
    for (uint64_t i = 0; i < in->entries; i++) {
        bool hole = (e[i].block & PM_BACKUP_HOLE) != 0;
        f->sum[e[i].block & ~PM_BACKUP_HOLE] = hole ? 0 : pm_backup_entry_sum(&e[i]);
    }
    return true;
}

// Takes over what a record says. `data`: where its blocks begin; 0: they lie in the files.
static bool apply(struct kept *kept, const struct pm_backup_index *x, uint64_t data) {
    const struct pm_backup_entry *e = x->entries;
    for (size_t row = 0; row < PM_HEAP_FILES && !data; row++)
        kept->file[row].missing = true;
    for (uint32_t i = 0; i < x->head.files; e += x->files[i++].entries)
        if (!apply_file(file_named(kept, x->files[i].name), &x->files[i], e, data ? &data : NULL))
            return false;
    memcpy(kept->uuid, x->head.uuid, sizeof kept->uuid);
    kept->round = x->head.round;
    kept->when = x->head.when;
    return true;
}

static int load_checksums(int fd, const char *what, struct kept *kept, struct pm_error *err) {
    struct pm_backup_index x;
    int status = pm_backup_read(fd, 0, false, what, &x, err);
    if (status == PM_NEEDS_RECOVERY)
        return pm_fail(err, PM_DAMAGE, "%s is empty; make another backup, in another directory",
                       what);
    if (status != PM_OK)
        return status;
    bool good = apply(kept, &x, 0);
    pm_backup_close(&x);
    return good ? PM_OK : no_memory(err);
}

// Increments of earlier rounds than the checksums may lie there after a cut; they are in these.
static int load_increments(int fd, const char *what, struct kept *kept, struct pm_error *err) {
    struct pm_backup_index x;
    uint64_t round = 0;
    int status = PM_OK;
    for (;; kept->last = kept->end, kept->end = x.next, kept->increments++) {
        status = pm_backup_read(fd, kept->end, true, what, &x, err);
        if (status != PM_OK)
            break;
        status = pm_backup_check_round(&kept->rounds, &x, round, kept->end, what, err);
        round = x.head.round;
        kept->head_crc = x.head.crc;
        if (status == PM_OK && !apply(kept, &x, x.data))
            status = no_memory(err);
        pm_backup_close(&x);
        if (status != PM_OK)
            return status;
    }
    return status == PM_NEEDS_RECOVERY
               ? pm_backup_check_last(&kept->rounds, round, kept->end, what, err)
               : status;
}

static int load_file(int dir_fd, const char *dir, const char *name, struct kept *kept,
                     int load(int, const char *, struct kept *, struct pm_error *),
                     struct pm_error *err) {
    char what[4096 + 32];
    snprintf(what, sizeof what, "%.400s/%s", dir, name);
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return pm_fail(err, errno == ENOENT ? PM_DAMAGE : PM_OPERATIONAL, "%s: %s", what,
                       pm_strerror(errno));
    int status = load(fd, what, kept, err);
    close(fd);
    return status;
}

int kept_load(int fd, const char *dir, struct kept *kept, struct pm_error *err) {
    char what[4096 + 32];
    memset(kept, 0, sizeof *kept);
    int status = load_file(fd, dir, PM_BACKUP_CHECKSUMS, kept, load_checksums, err);
    if (status == PM_OK)
        status = pm_backup_read_rounds(fd, dir, &kept->rounds, err);
    if (status != PM_OK)
        return status;
    enum pm_there increments = pm_os_there(fd, PM_BACKUP_INCREMENTS);
    if (increments == PM_IS_THERE)
        return load_file(fd, dir, PM_BACKUP_INCREMENTS, kept, load_increments, err);
    snprintf(what, sizeof what, "%.400s/" PM_BACKUP_INCREMENTS, dir);
    if (increments == PM_CANNOT_TELL)
        return pm_fail(err, PM_OPERATIONAL, "%s: %s", what, pm_strerror(errno));
    return pm_backup_check_last(&kept->rounds, 0, 0, what, err);
}

void kept_free(struct kept *kept) {
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        free(kept->file[row].sum);
        pm_backup_forget(&kept->file[row].places);
        kept->file[row] = (struct kept_file){0};
    }
}

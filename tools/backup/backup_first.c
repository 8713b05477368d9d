// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backup_live.h"
#include "backup_record.h"
#include "backup_round.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/heap.h"

enum { RUN_BLOCKS = 256 };

// A file while it is copied.
struct copy {
    const struct target *target;
    struct record *record;
    struct round *round;
    pm_progress *progress;
    uint64_t total;
    int fd;
    uint64_t had;  // length of what an earlier round has left
    uint64_t next; // the block after the last one that was copied
    bool good;
    // Blocks that follow each other and are not written yet.
    uint64_t first, count;
    char data[RUN_BLOCKS * PM_BACKUP_BLOCK];
};

static bool write_run(struct copy *c) {
    uint64_t len = c->count * PM_BACKUP_BLOCK;
    c->round->written += len;
    c->good = c->good && pm_os_write_all(c->fd, c->data, len, c->first * PM_BACKUP_BLOCK);
    c->count = 0;
    return c->good;
}

// The file may have data there from an interrupted round.
static bool clear_to(struct copy *c, uint64_t block) {
    uint64_t from = c->next * PM_BACKUP_BLOCK;
    uint64_t to = block * PM_BACKUP_BLOCK < c->had ? block * PM_BACKUP_BLOCK : c->had;
    if (from >= to)
        return true;
    return fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                     (off_t)(to - from)) == 0 ||
           ftruncate(c->fd, (off_t)from) == 0; // then all that follows is written again
}

// Also what an interrupted round has written already is written: if that round did not sync it, or
// the sync failed, this one's sync does not write what only the page cache has.
static bool copy_block(uint64_t block, const char *data, void *arg) {
    struct copy *c = arg;
    record_entry(c->record, block, pm_backup_sum(data));
    c->good = c->good && clear_to(c, block);
    c->next = block + 1;
    c->round->changed += PM_BACKUP_BLOCK;
    if (c->progress)
        c->progress("copy", c->round->changed, c->total);
    if (c->count && (c->first + c->count != block || c->count == RUN_BLOCKS) && !write_run(c))
        return false;
    if (!c->count)
        c->first = block;
    memcpy(c->data + c->count++ * PM_BACKUP_BLOCK, data, PM_BACKUP_BLOCK);
    return c->good;
}

static const char *name_of(size_t row) {
    return row == PM_ROW_super_file ? PM_BACKUP_UNFINISHED : pm_heap_files[row].name;
}

static bool is_there(const struct source *s, size_t row) {
    return s->image ? s->image->file[row].there : s->file[row].fd >= 0;
}

static int copy_image(const struct source *s, size_t row, struct copy *c, struct pm_error *err) {
    const struct image_file *f = &s->image->file[row];
    char data[PM_BACKUP_BLOCK];
    for (uint64_t b = 0; b < kept_blocks(f->length); b++) {
        if (!f->sum[b])
            continue;
        if (source_read_blocks(s, row, b, 1, data, err) != PM_OK)
            return err->status;
        if (!copy_block(b, data, c))
            break;
    }
    return PM_OK;
}

static int copy_blocks(const struct source *s, size_t row, struct copy *c, struct pm_error *err) {
    return s->image ? copy_image(s, row, c, err) : source_read(s, row, copy_block, c, err);
}

static bool fill_file(const struct source *s, size_t row, struct copy *c, struct pm_error *err) {
    struct stat st;
    uint64_t length = s->image ? s->image->file[row].length : s->file[row].length;
    errno = 0;
    if (c->fd < 0 || !pm_os_file_size(length) || fstat(c->fd, &st) != 0)
        return false;
    c->had = (uint64_t)st.st_size;
    c->next = c->count = 0;
    c->good = true;
    record_file(c->record, row, length);
    return copy_blocks(s, row, c, err) == PM_OK && c->good && write_run(c) &&
           clear_to(c, UINT64_MAX / PM_BACKUP_BLOCK) && ftruncate(c->fd, (off_t)length) == 0 &&
           fsync(c->fd) == 0;
}

static int copy_file(const struct source *s, size_t row, struct copy *c, struct pm_error *err) {
    err->status = PM_OK;
    c->fd = openat(c->target->fd, name_of(row), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fill_file(s, row, c, err);
    if (!good && err->status == PM_OK)
        target_failed(c->target, name_of(row), err);
    if (c->fd >= 0)
        close(c->fd);
    return good ? PM_OK : err->status;
}

// The superblock comes first: its name says that the rest is unfinished.
static int copy_all(const struct source *s, struct copy *c, struct pm_error *err) {
    int status = PM_OK, dir = c->target->fd;
    for (size_t row = 0; row < PM_HEAP_FILES && status == PM_OK; row++) {
        if (is_there(s, row))
            status = copy_file(s, row, c, err);
        else if (unlinkat(dir, pm_heap_files[row].name, 0) != 0 && errno != ENOENT)
            status = target_failed(c->target, pm_heap_files[row].name, err);
        if (row == PM_ROW_super_file && status == PM_OK && fsync(dir) != 0)
            status = target_failed(c->target, ".", err);
    }
    if (status == PM_OK && c->record->failed)
        status = pm_fail(err, PM_OPERATIONAL, "no memory for the checksums of the backup");
    return status;
}

// ---- a heap in use ------------------------------------------------------------------------------
//
// The image of one instant is taken, in memory, and copied. So each block is written once, however
// busy the program is.
//
// A heap that is too large for that is copied while the program runs. Then the image is taken, and
// blocks that differ from the copy are copied, too.

// What was copied, as if it were a backup.
static bool take_over(const struct record *record, struct kept *kept) {
    const struct pm_backup_entry *e = record->entries;
    for (uint32_t i = 0; i < record->count && !record->failed; i++) {
        struct kept_file *f = &kept->file[record->rows[i]];
        f->there = true;
        f->length = record->files[i].length;
        if (record->files[i].entries)
            f->blocks = (uint64_t)e[record->files[i].entries - 1].block + 1;
        f->sum = calloc(f->blocks + 1, sizeof *f->sum);
        for (uint64_t k = 0; f->sum && k < record->files[i].entries; k++)
            f->sum[e[k].block] = pm_backup_entry_sum(&e[k]);
        if (!f->sum)
            return false;
        e += record->files[i].entries;
    }
    return !record->failed;
}

// Blocks that the copy has and the instant has not become holes.
static bool correct_file(const struct source *s, struct copy *c, const struct kept_file *copied,
                         size_t row, struct pm_error *err) {
    const struct image_file *f = &s->image->file[row];
    uint64_t blocks = kept_blocks(f->length);
    if (c->fd < 0 || !pm_os_file_size(f->length))
        return false;
    c->had = UINT64_MAX;
    c->count = 0;
    c->good = true;
    record_file(c->record, row, f->length);
    for (uint64_t b = 0; b < blocks && c->good && !c->record->failed; b++) {
        bool hole = !f->sum[b] && kept_sum_of(copied, b);
        if (f->sum[b])
            record_entry(c->record, b, f->sum[b]);
        c->next = b;
        if (hole)
            c->good = clear_to(c, b + 1);
        if (!f->slot[b])
            continue;
        if (c->count && (c->first + c->count != b || c->count == RUN_BLOCKS) && !write_run(c))
            return false;
        if (!c->count)
            c->first = b;
        if (source_read_blocks(s, row, b, 1, c->data + c->count++ * PM_BACKUP_BLOCK, err) != PM_OK)
            return false;
    }
    return c->good && write_run(c) && ftruncate(c->fd, (off_t)f->length) == 0 && fsync(c->fd) == 0;
}

static int correct_all(const struct source *s, struct copy *c, const struct kept *copied,
                       struct pm_error *err) {
    int dir = c->target->fd;
    bool good = true;
    err->status = PM_OK;
    for (size_t row = 0; row < PM_HEAP_FILES && good; row++) {
        const char *name = name_of(row);
        if (!s->image->file[row].there) {
            good = unlinkat(dir, name, 0) == 0 || errno == ENOENT;
        } else {
            c->fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
            good = correct_file(s, c, &copied->file[row], row, err);
            if (!good && err->status == PM_OK)
                target_failed(c->target, name, err);
            if (c->fd >= 0)
                close(c->fd);
        }
        if (!good && err->status == PM_OK)
            target_failed(c->target, name, err);
    }
    c->round->changed = c->record->blocks * PM_BACKUP_BLOCK;
    return good ? PM_OK : err->status;
}

static int take_instant(struct source *s, struct copy *c, struct pm_error *err) {
    static struct kept copied;
    if (!take_over(c->record, &copied))
        return pm_fail(err, PM_OPERATIONAL, "no memory for the checksums of the backup");
    int status = live_take(s, &copied, c->target->fd, true, c->progress, err);
    c->record->count = 0;
    c->record->used = c->record->blocks = 0;
    return status == PM_OK ? correct_all(s, c, &copied, err) : status;
}

// A heap may grow meanwhile, so half of the room must do.
static bool fits_in_memory(const struct source *s) { return s->allocated <= image_memory() / 2; }

static int copy_in_use(struct source *s, struct copy *c, struct pm_error *err) {
    static const struct kept nothing;
    bool fits = fits_in_memory(s);
    int status = fits ? live_take(s, &nothing, c->target->fd, false, c->progress, err) : PM_OK;
    if (status == PM_OK)
        status = copy_all(s, c, err);
    return status == PM_OK && !fits ? take_instant(s, c, err) : status;
}

// ---- the end ------------------------------------------------------------------------------------

static bool write_checksums(const struct target *t, const struct record *record, struct round *r) {
    struct pm_backup_record head = {.round = r->number, .when = (uint64_t)time(NULL)};
    memcpy(head.uuid, pm_heap.super->super.uuid, sizeof head.uuid);
    int fd = openat(t->fd, PM_BACKUP_CHECKSUMS, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                    0600);
    bool good = fd >= 0 && record_write_checksums(record, fd, &head) && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    r->written += pm_backup_record_bytes(record->count, record->used);
    r->written += sizeof(uint64_t) + sizeof(struct pm_backup_ledger);
    return good;
}

static int finish_first(const struct target *t, const struct record *record, struct round *r,
                        struct pm_error *err) {
    if (!write_checksums(t, record, r))
        return target_failed(t, PM_BACKUP_CHECKSUMS, err);
    if (fsync(t->fd) != 0 ||
        renameat(t->fd, PM_BACKUP_UNFINISHED, t->fd, pm_heap.super_file.name) != 0 ||
        fsync(t->fd) != 0 || !target_sync_parent(t))
        return target_failed(t, pm_heap.super_file.name, err);
    return PM_OK;
}

static uint64_t allocated_in(const struct target *t) {
    uint64_t bytes = 0;
    struct stat st;
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        if (fstatat(t->fd, name_of(row), &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

int round_first(struct source *s, struct target *t, pm_progress *progress, struct round *r,
                struct pm_error *err) {
    static struct record record;
    static struct copy copy;
    uint64_t there = allocated_in(t), blocks = s->allocated / PM_BACKUP_BLOCK;
    uint64_t needs = s->allocated + pm_backup_record_bytes(PM_HEAP_FILES, blocks);
    *r = (struct round){.number = 1, .first = true};
    copy = (struct copy){
        .target = t, .record = &record, .round = r, .progress = progress, .total = s->allocated};
    int status = target_room(t, needs > there ? needs - there : 0, err);
    if (status == PM_OK)
        status = s->owner ? copy_in_use(s, &copy, err) : copy_all(s, &copy, err);
    r->written += s->image ? s->image->spilled : 0;
    return status == PM_OK ? finish_first(t, &record, r, err) : status;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A later round. In this order, each arrow an fsync:
//
//   index and data of the increment -> the superblock is set aside -> the increment's magic number
//   -> the ledger in backup.checksums
//
// So nobody opens the backup without folding, and who folds finds the rounds up to the last one
// that has its magic number.
//
// A round may end between a change and its fsync, or by an fsync that fails. The page cache then
// shows what the disk does not have, and a later fsync does not write it. So each round begins by
// doing again what the round before has done last (settle).
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backup_live.h"
#include "backup_record.h"
#include "backup_round.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/heap.h"

// At this number of increments a round folds first, so that an opening need not read too many.
enum { INCREMENTS_MAX = 1000, RUN_BLOCKS = 256 };

struct search {
    const struct source *source;
    const struct kept_file *kept;
    struct record *record;
    pm_progress *progress;
    uint64_t read, total;
    uint64_t next; // the first block that was not compared
};

// ---- what has changed ---------------------------------------------------------------------------

static void holes_to(struct search *s, uint64_t end) {
    for (; s->next < end && s->next < s->kept->blocks; s->next++)
        if (s->kept->sum[s->next])
            record_entry(s->record, s->next, 0);
}

static bool compare(uint64_t block, const char *data, void *arg) {
    struct search *s = arg;
    uint64_t sum = pm_backup_sum(data);
    holes_to(s, block);
    if (sum != kept_sum_of(s->kept, block))
        record_entry(s->record, block, sum);
    s->next = block + 1;
    s->read += PM_BACKUP_BLOCK;
    if (s->progress)
        s->progress("read", s->read, s->total);
    return !s->record->failed;
}

static int compare_file(struct search *s, const struct kept *kept, size_t row,
                        struct pm_error *err) {
    const struct source_file *f = &s->source->file[row];
    s->kept = &kept->file[row];
    s->next = 0;
    if (f->fd < 0) {
        if (s->kept->there)
            record_file(s->record, row, PM_BACKUP_GONE);
        return PM_OK;
    }
    record_file(s->record, row, f->length);
    int status = source_read(s->source, row, compare, s, err);
    if (status != PM_OK)
        return status;
    holes_to(s, kept_blocks(f->length));
    if (!s->record->files[s->record->count - 1].entries && s->kept->there &&
        s->kept->length == f->length)
        record_drop_file(s->record);
    return PM_OK;
}

// The same for a heap in use, of which the image has all checksums.
static void compare_image(struct record *record, const struct image *image, const struct kept *kept,
                          size_t row) {
    const struct image_file *f = &image->file[row];
    const struct kept_file *k = &kept->file[row];
    if (!f->there) {
        if (k->there)
            record_file(record, row, PM_BACKUP_GONE);
        return;
    }
    record_file(record, row, f->length);
    for (uint64_t b = 0; b < kept_blocks(f->length) && !record->failed; b++)
        if (f->sum[b] != kept_sum_of(k, b))
            record_entry(record, b, f->sum[b]);
    if (!record->files[record->count - 1].entries && k->there && k->length == f->length)
        record_drop_file(record);
}

// ---- writing ------------------------------------------------------------------------------------

struct writer {
    const struct source *source;
    const struct target *target;
    const struct record *record;
    struct round *round;
    pm_progress *progress;
    int fd;
    uint64_t at; // where the record lies
    uint64_t to; // where the next block goes
    uint32_t head_crc;
};

static int write_run(struct writer *w, size_t row, const struct pm_backup_entry *e, uint64_t count,
                     struct pm_error *err) {
    static char data[RUN_BLOCKS * PM_BACKUP_BLOCK];
    uint64_t len = count * PM_BACKUP_BLOCK;
    if (source_read_blocks(w->source, row, e->block, count, data, err) != PM_OK)
        return err->status;
    for (uint64_t i = 0; i < count; i++)
        if (pm_backup_sum(data + i * PM_BACKUP_BLOCK) != pm_backup_entry_sum(&e[i]))
            return pm_fail(err, PM_OPERATIONAL,
                           "%.300s/%s changed while it was read, although the heap is locked; who "
                           "writes to it? The backup stays as it was",
                           pm_heap.dir, pm_heap_files[row].name);
    if (!pm_os_write_all(w->fd, data, len, w->to))
        return target_failed(w->target, PM_BACKUP_INCREMENTS, err);
    w->to += len;
    w->round->written += len;
    if (w->progress)
        w->progress("write", w->round->written, w->round->changed);
    return PM_OK;
}

static int write_file(struct writer *w, uint32_t i, const struct pm_backup_entry *e,
                      struct pm_error *err) {
    uint64_t count = w->record->files[i].entries, n;
    for (uint64_t k = 0; k < count; k += n) {
        for (n = 1; k + n < count && n < RUN_BLOCKS && e[k + n].block == e[k].block + n; n++) {
        }
        if (!(e[k].block & PM_BACKUP_HOLE) &&
            write_run(w, w->record->rows[i], e + k, n, err) != PM_OK)
            return err->status;
    }
    return PM_OK;
}

static int write_increment(struct writer *w, struct pm_error *err) {
    const struct pm_backup_entry *e = w->record->entries;
    uint64_t index = pm_backup_record_bytes(w->record->count, w->record->used);
    struct pm_backup_record head = {.round = w->round->number, .when = (uint64_t)time(NULL)};
    memcpy(head.uuid, w->target->kept.uuid, sizeof head.uuid);
    w->to = w->at + pm_backup_align(index);
    w->round->written += index + sizeof(uint64_t); // the magic number is written twice
    // The bytes of an interrupted round go first: nothing but zeroes may follow.
    if (!pm_os_file_size(w->to + w->record->blocks * PM_BACKUP_BLOCK) ||
        ftruncate(w->fd, (off_t)w->at) != 0 || ftruncate(w->fd, (off_t)w->to) != 0 ||
        !record_write(w->record, w->fd, w->at, &head))
        return target_failed(w->target, PM_BACKUP_INCREMENTS, err);
    w->head_crc = head.crc;
    for (uint32_t i = 0; i < w->record->count; i++) {
        if (write_file(w, i, e, err) != PM_OK)
            return err->status;
        e += w->record->files[i].entries;
    }
    return fsync(w->fd) == 0 ? PM_OK : target_failed(w->target, PM_BACKUP_INCREMENTS, err);
}

// Enters a round in the ledger, durably. A backup of an older version has none until it is folded.
static int enter(const struct target *t, uint64_t round, uint64_t end, uint32_t head_crc,
                 struct pm_error *err) {
    const struct pm_backup_rounds *r = &t->kept.rounds;
    if (!r->known)
        return PM_OK;
    int fd = openat(t->fd, PM_BACKUP_CHECKSUMS, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    bool good = fd >= 0 && pm_backup_write_ledger(fd, r->at, t->kept.uuid, round, end, head_crc) &&
                fsync(fd) == 0;
    if (!good)
        target_failed(t, PM_BACKUP_CHECKSUMS, err);
    if (fd >= 0)
        close(fd);
    return good ? PM_OK : err->status;
}

// The magic number of the last increment, if there is one.
static bool commit_again(const struct target *t, uint64_t *written) {
    if (!t->kept.increments)
        return true;
    int fd = openat(t->fd, PM_BACKUP_INCREMENTS, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    bool good = fd >= 0 && record_commit(fd, t->kept.last) && fsync(fd) == 0;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    *written += sizeof(uint64_t);
    return good;
}

// The last steps of the round before, in their order: names, magic number, ledger. The bytes
// written before these were synced by the round that wrote them, or the steps would not be there.
static int settle(const struct target *t, uint64_t *written, struct pm_error *err) {
    const struct kept *kept = &t->kept;
    if (fsync(t->fd) != 0 || !target_sync_parent(t))
        return target_failed(t, ".", err);
    if (!commit_again(t, written))
        return target_failed(t, PM_BACKUP_INCREMENTS, err);
    if (kept->round == kept->rounds.base)
        return PM_OK;
    *written += sizeof(struct pm_backup_ledger);
    return enter(t, kept->round, kept->end, kept->head_crc, err);
}

static int commit(struct writer *w, struct pm_error *err) {
    const struct target *t = w->target;
    if (fsync(t->fd) != 0 ||
        (t->state == PM_BACKUP_IS_PLAIN &&
         (renameat(t->fd, pm_heap.super_file.name, t->fd, PM_BACKUP_SUPERBLOCK) != 0 ||
          fsync(t->fd) != 0)))
        return target_failed(t, PM_BACKUP_SUPERBLOCK, err);
    if (!record_commit(w->fd, w->at) || fsync(w->fd) != 0)
        return target_failed(t, PM_BACKUP_INCREMENTS, err);
    return PM_OK;
}

static bool release(int fd, uint64_t at, uint64_t len) {
    return len == 0 ||
           fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)len) == 0;
}

// Blocks of earlier increments that this one has replaced. Their space goes back, where the file
// system can do that. Folding copies what is there in their place, and then the newer block.
static void release_replaced(const struct writer *w) {
    const struct pm_backup_entry *e = w->record->entries;
    uint64_t at = 0, len = 0;
    bool good = true;
    for (uint32_t i = 0; i < w->record->count; i++) {
        const struct kept_file *f = &w->target->kept.file[w->record->rows[i]];
        for (uint64_t k = 0; good && k < w->record->files[i].entries; k++, e++) {
            uint64_t block = e->block & ~PM_BACKUP_HOLE;
            uint64_t place = pm_backup_place(&f->places, block).at;
            if (place == PM_BACKUP_IN_FILE || place == PM_BACKUP_BY_HOLE)
                continue;
            if (place != at + len) {
                good = release(w->fd, at, len);
                at = place;
                len = 0;
            }
            len += PM_BACKUP_BLOCK;
        }
    }
    if (good)
        release(w->fd, at, len);
}

static int write_round(struct writer *w, struct pm_error *err) {
    const struct target *t = w->target;
    uint64_t index = pm_backup_record_bytes(w->record->count, w->record->used);
    int status = target_room(t, index + PM_BACKUP_BLOCK + w->round->changed, err);
    if (status != PM_OK)
        return status;
    w->fd = openat(t->fd, PM_BACKUP_INCREMENTS, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w->fd < 0)
        return target_failed(t, PM_BACKUP_INCREMENTS, err);
    w->at = t->kept.end;
    status = write_increment(w, err);
    if (status == PM_OK)
        status = commit(w, err);
    if (status == PM_OK)
        status = enter(w->target, w->round->number, w->to, w->head_crc, err);
    w->round->written += sizeof(struct pm_backup_ledger);
    if (status == PM_OK)
        release_replaced(w);
    close(w->fd);
    return status;
}

// ---- many increments ----------------------------------------------------------------------------

// The checksums of all rounds take the place of the first round's, under the same name. Then the
// increments, which are in the files now, are not needed.
static int merge_checksums(struct target *t, struct pm_error *err) {
    static struct record all;
    struct pm_backup_record head = {.round = t->kept.round, .when = t->kept.when};
    memcpy(head.uuid, t->kept.uuid, sizeof head.uuid);
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        const struct kept_file *f = &t->kept.file[row];
        if (f->there)
            record_file(&all, row, f->length);
        for (uint64_t i = 0; f->there && i < kept_blocks(f->length); i++)
            if (kept_sum_of(f, i))
                record_entry(&all, i, kept_sum_of(f, i));
    }
    int fd = openat(t->fd, PM_BACKUP_NEW_CHECKSUMS,
                    O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = !all.failed && fd >= 0 && record_write_checksums(&all, fd, &head) &&
                fsync(fd) == 0 &&
                renameat(t->fd, PM_BACKUP_NEW_CHECKSUMS, t->fd, PM_BACKUP_CHECKSUMS) == 0 &&
                fsync(t->fd) == 0;
    if (fd >= 0)
        close(fd);
    free(all.entries);
    return good ? PM_OK : target_failed(t, PM_BACKUP_CHECKSUMS, err);
}

static int fold_increments(struct target *t, struct pm_error *err) {
    int status = t->state == PM_BACKUP_IS_LAYERED ? pm_backup_fold(t->fd, t->dir, err) : PM_OK;
    if (status == PM_OK)
        status = merge_checksums(t, err);
    if (status != PM_OK)
        return status;
    t->state = PM_BACKUP_IS_PLAIN;
    if (unlinkat(t->fd, PM_BACKUP_INCREMENTS, 0) != 0 || fsync(t->fd) != 0)
        return target_failed(t, PM_BACKUP_INCREMENTS, err);
    kept_free(&t->kept);
    return kept_load(t->fd, t->dir, &t->kept, err);
}

int round_next(struct source *s, struct target *t, pm_progress *progress, struct round *r,
               struct pm_error *err) {
    static struct record record;
    uint64_t settled = 0;
    int status = t->state == PM_BACKUP_IS_PLAIN ? target_unused(t, err) : PM_OK;
    if (status == PM_OK)
        status = settle(t, &settled, err);
    if (status == PM_OK && t->kept.increments >= INCREMENTS_MAX)
        status = fold_increments(t, err);
    struct search search = {
        .source = s, .record = &record, .progress = progress, .total = s->allocated};
    if (status == PM_OK && s->owner)
        status = live_take(s, &t->kept, t->fd, false, progress, err);
    for (size_t row = 0; row < PM_HEAP_FILES && status == PM_OK; row++) {
        if (s->owner)
            compare_image(&record, s->image, &t->kept, row);
        else
            status = compare_file(&search, &t->kept, row, err);
    }
    if (status != PM_OK)
        return status;
    if (record.failed)
        return pm_fail(err, PM_OPERATIONAL, "no memory for the checksums of the backup");
    *r = (struct round){.number = t->kept.round + 1,
                        .changed = record.blocks * PM_BACKUP_BLOCK,
                        .written = settled};
    r->nothing = record.count == 0;
    if (r->nothing)
        r->number--;
    struct writer writer = {
        .source = s, .target = t, .record = &record, .round = r, .progress = progress};
    r->written += s->image ? s->image->spilled : 0;
    return r->nothing ? PM_OK : write_round(&writer, err);
}

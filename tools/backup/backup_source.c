// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backup_image.h"
#include "backup_kept.h"
#include "base/os_file.h"
#include "blocks/verify.h"
#include "commit_follow.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/commit/doubt.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "media/open/shard_make.h"
#include "recovery/offline.h"

enum { CHUNK_BLOCKS = 256 };

static int reason(size_t row, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", pm_heap.dir, pm_heap_files[row].name,
                   pm_strerror(errno));
}

// ---- opening ------------------------------------------------------------------------------------

static int check_heap(pm_progress *progress, struct source *s, struct pm_error *err) {
    struct pm_recover_options how = {.mark = {.progress = progress}};
    bool clean = pm_heap_is_clean();
    int status = pm_recover(&how, &s->found, err);
    if (status == PM_OK)
        status = pm_verify(false, err);
    s->found.was_clean = clean;
    return status;
}

static int measure(struct source_file *file, struct source *s) {
    struct stat st;
    if (fstat(file->fd, &st) != 0)
        return -1;
    file->length = (uint64_t)st.st_size;
    file->allocated = (uint64_t)st.st_blocks * 512;
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    s->allocated += file->allocated;
    return 0;
}

// The data of a heap in use are mapped here, as far as they may ever reach.
static const char *map_part(size_t row) {
    static const char *map[PM_HEAP_FILES];
    const struct pm_file *part = pm_heap_file(&pm_heap_files[row]);
    if (part->map)
        return part->map;
    if (!map[row])
        map[row] = pm_file_view(part, part->room, 0);
    return map[row];
}

// All space of a part is taken for data. A record that is not there is an empty part.
static int take_part(struct source *s, size_t row, struct pm_error *err) {
    const struct pm_heap_file *f = &pm_heap_files[row];
    struct source_file *file = &s->file[row];
    const struct pm_file *part = pm_heap_file(f);
    bool record = f->holds == PM_FILE_PROGRAM && part->length && part->size;
    if (!record && !pm_heap_holds(f))
        return PM_OK;
    *file = (struct source_file){.fd = part->fd,
                                 .length = part->size,
                                 .allocated = part->size,
                                 .dev = part->dev,
                                 .ino = part->ino,
                                 .bytes = map_part(row),
                                 .at = part->at,
                                 .room = part->room};
    s->allocated += file->allocated;
    return file->bytes ? PM_OK : reason(row, err);
}

static int take_parts(struct source *s, struct pm_error *err) {
    int status = pm_fixed_measure(err);
    s->allocated = 0;
    for (size_t row = 0; row < PM_HEAP_FILES && status == PM_OK; row++)
        status = take_part(s, row, err);
    return status;
}

// A file that is not kept open, like bitmaps.0, need not be there.
static int open_file(struct source *s, size_t row, struct pm_error *err) {
    const struct pm_heap_file *f = &pm_heap_files[row];
    struct source_file *file = &s->file[row];
    if (f->holds == PM_FILE_NOTHING || f->shard >= pm_heap.shards)
        return PM_OK;
    if (pm_fixed_is_open())
        return take_part(s, row, err);
    if (f->held)
        file->fd = pm_heap_holds(f) ? pm_heap_file(f)->fd : -1;
    else
        file->fd = openat(pm_heap.dir_fd, pm_heap_file(f)->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file->fd < 0)
        return f->held || errno == ENOENT ? PM_OK : reason(row, err);
    return measure(file, s) == 0 ? PM_OK : reason(row, err);
}

int source_open_files(struct source *s, struct pm_error *err) {
    unsigned shards = pm_super_shards(pm_heap.super);
    char name[PM_FILE_NAME];
    if (pm_fixed_is_open())
        return take_parts(s, err);
    s->allocated = 0;
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        const struct pm_heap_file *f = &pm_heap_files[row];
        struct source_file *file = &s->file[row];
        if (file->fd >= 0)
            close(file->fd);
        file->fd = -1;
        if (f->holds == PM_FILE_NOTHING || f->shard >= shards)
            continue;
        if (!pm_volume_find(pm_heap.dir_fd, f, name) && errno != ENOENT)
            return reason(row, err);
        file->fd = openat(pm_heap.dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file->fd < 0 && errno != ENOENT)
            return reason(row, err);
        if (file->fd >= 0 && measure(file, s) != 0)
            return reason(row, err);
    }
    return PM_OK;
}

int source_open(const char *heap, pm_progress *progress, struct source *s, struct pm_error *err) {
    memset(s, 0, sizeof *s);
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        s->file[row].fd = -1;
    int status = pm_offline_open(heap, PM_OPEN_READONLY, err);
    if (status != PM_OK)
        return status;
    if (pm_journal_opened.is == PM_JOURNAL_WHOLE) // the bytes of the files are what is copied
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s/journal holds a commit that is not in the other files yet: run "
                       "`pmalloc-recover %.300s`",
                       pm_heap.dir, pm_heap.dir);
    for (size_t row = 0; row < PM_HEAP_FILES && status == PM_OK; row++)
        status = open_file(s, row, err);
    if (status == PM_OK)
        status = check_heap(progress, s, err);
    if (status == PM_OK)
        pm_doubt_say();
    return status;
}

// ---- reading ------------------------------------------------------------------------------------

// Zeroes a part of the state page, if that is among the blocks.
static void drop(size_t at, size_t len, uint64_t first, uint64_t count, char *data) {
    uint64_t from = first * PM_BACKUP_BLOCK;
    at += offsetof(struct pm_super_file, state);
    if (at >= from && at < from + count * PM_BACKUP_BLOCK)
        memset(data + (at - from), 0, len);
}

// A backup has all files in one directory, no owner that is running, no journal whose commits it
// could count, and no origin: it is of one instant, so it may be copied.
static void make_own(const struct source *s, size_t row, uint64_t first, uint64_t count,
                     char *data) {
    if (row != PM_ROW_super_file)
        return;
    drop(offsetof(struct pm_state, reserved) + offsetof(struct pm_shard_state, volume), PM_SHARDS,
         first, count, data);
    drop(offsetof(struct pm_state, origin), sizeof(struct pm_origin), first, count, data);
    drop(offsetof(struct pm_state, applied), sizeof(uint64_t), first, count, data);
    if (!s->owner)
        return;
    drop(offsetof(struct pm_state, owner_pid), sizeof(uint64_t), first, count, data);
    drop(offsetof(struct pm_state, owner_start), sizeof(uint64_t), first, count, data);
}

static int read_image(const struct source *s, size_t row, uint64_t block, uint64_t count, char *out,
                      struct pm_error *err) {
    for (uint64_t i = 0; i < count; i++)
        if (!image_read(s->image, row, block + i, out + i * PM_BACKUP_BLOCK))
            return reason(row, err);
    return PM_OK;
}

int source_read_blocks(const struct source *s, size_t row, uint64_t block, uint64_t count,
                       char *out, struct pm_error *err) {
    const struct source_file *f = &s->file[row];
    uint64_t at = block * PM_BACKUP_BLOCK, len = count * PM_BACKUP_BLOCK, have = 0;
    if (s->image)
        return read_image(s, row, block, count, out, err);
    if (f->bytes) {
        uint64_t there = at < f->length ? f->length - at : 0;
        have = there < len ? there : len;
        memcpy(out, f->bytes + at, have);
    }
    follow_look();
    ssize_t got = f->bytes ? (ssize_t)have : pm_os_read_at(f->fd, out, len, at);
    if (got < 0)
        return reason(row, err);
    have = (uint64_t)got;
    if (at + have < f->length && have < len && !s->owner)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s/%s is shorter than it was; did another program cut it?", pm_heap.dir,
                       pm_heap_files[row].name);
    memset(out + have, 0, len - have);
    make_own(s, row, block, count, out);
    return PM_OK;
}

// A file system that does not know holes has data up to the end.
bool source_next_data(const struct source_file *f, uint64_t *block, uint64_t *end) {
    if (f->bytes) {
        *end = kept_blocks(f->length);
        return *block < *end;
    }
    off_t at = lseek(f->fd, (off_t)(*block * PM_BACKUP_BLOCK), SEEK_DATA);
    if (at < 0 && errno == ENXIO)
        return false;
    off_t to = at < 0 ? -1 : lseek(f->fd, at, SEEK_HOLE);
    *block = at < 0 ? *block : (uint64_t)at / PM_BACKUP_BLOCK;
    *end = kept_blocks(to < 0 || (uint64_t)to > f->length ? f->length : (uint64_t)to);
    return *block < *end;
}

int source_read(const struct source *s, size_t row, source_block_fn *each, void *arg,
                struct pm_error *err) {
    static char chunk[CHUNK_BLOCKS * PM_BACKUP_BLOCK];
    uint64_t block = 0,
             end = 0; // of data; to find the next hole, tmpfs looks at each page before it
    while (block < kept_blocks(s->file[row].length) &&
           (block < end || source_next_data(&s->file[row], &block, &end))) {
        uint64_t count = end - block < CHUNK_BLOCKS ? end - block : CHUNK_BLOCKS;
        if (source_read_blocks(s, row, block, count, chunk, err) != PM_OK)
            return err->status;
        for (uint64_t i = 0; i < count; i++) {
            const char *data = chunk + i * PM_BACKUP_BLOCK;
            if ((*data || memcmp(data, data + 1, PM_BACKUP_BLOCK - 1) != 0) &&
                !each(block + i, data, arg))
                return PM_OK;
        }
        block += count;
    }
    return PM_OK;
}

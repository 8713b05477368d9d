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
#include "media/backing/view.h"
#include "media/heap.h"

// `name` is there or not: the one state or the other.
static enum pm_backup_state choose(int fd, const char *name, enum pm_backup_state there,
                                   enum pm_backup_state not_there) {
    enum pm_there is = pm_os_there(fd, name);
    return is == PM_CANNOT_TELL ? PM_BACKUP_IS_UNKNOWN : is == PM_IS_THERE ? there : not_there;
}

enum pm_backup_state pm_backup_state_headless(int fd) {
    enum pm_backup_state is =
        choose(fd, PM_BACKUP_SUPERBLOCK, PM_BACKUP_IS_LAYERED, PM_BACKUP_IS_NONE);
    return is != PM_BACKUP_IS_NONE
               ? is
               : choose(fd, PM_BACKUP_UNFINISHED, PM_BACKUP_IS_UNFINISHED, PM_BACKUP_IS_NONE);
}

enum pm_backup_state pm_backup_state(int fd) {
    enum pm_there super = pm_os_there(fd, pm_heap_files[PM_ROW_super_file].name);
    if (super == PM_CANNOT_TELL)
        return PM_BACKUP_IS_UNKNOWN;
    if (super == PM_NOT_THERE)
        return pm_backup_state_headless(fd);
    return choose(fd, PM_BACKUP_CHECKSUMS, PM_BACKUP_IS_PLAIN, PM_BACKUP_IS_NONE);
}

bool pm_backup_name(const char *name) {
    return strcmp(name, PM_BACKUP_CHECKSUMS) == 0 || strcmp(name, PM_BACKUP_NEW_CHECKSUMS) == 0 ||
           strcmp(name, PM_BACKUP_INCREMENTS) == 0 || strcmp(name, PM_BACKUP_SUPERBLOCK) == 0 ||
           strcmp(name, PM_BACKUP_UNFINISHED) == 0;
}

int pm_backup_damaged(const char *what, uint64_t at, const char *why, struct pm_error *err) {
    return pm_fail(err, PM_DAMAGE,
                   "%s, byte %lu: %s; this backup is damaged: make another one, in another "
                   "directory",
                   what, (unsigned long)at, why);
}

static int read_failed(const char *what, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s: %s", what, pm_strerror(errno));
}

// The row of the table that has this name; PM_HEAP_FILES: none has.
static size_t row_of(const struct pm_backup_file *f) {
    size_t row = 0;
    if (f->name[sizeof f->name - 1] != 0)
        return PM_HEAP_FILES;
    while (row < PM_HEAP_FILES && strcmp(pm_heap_files[row].name, f->name) != 0)
        row++;
    return row;
}

// Each block once, in order, and none where the file has none: nothing may be written there.
static bool in_order(const struct pm_backup_file *f, const struct pm_backup_entry *e) {
    uint64_t next = 0;
    for (uint64_t i = 0; i < f->entries; i++) {
        uint64_t block = e[i].block & ~PM_BACKUP_HOLE;
        if (block < next || block * PM_BACKUP_BLOCK >= f->length)
            return false;
        next = block + 1;
    }
    return true;
}

// Each file once, in the order of the table. No heap is without its superblock.
static bool is_sound(const struct pm_backup_index *x) {
    uint64_t seen = 0;
    size_t next = 0;
    for (uint32_t i = 0; i < x->head.files; i++) {
        const struct pm_backup_file *f = &x->files[i];
        size_t row = row_of(f);
        bool gone = f->length == PM_BACKUP_GONE;
        if (row < next || row == PM_HEAP_FILES || f->entries > x->head.entries - seen ||
            (gone && (f->entries || row == PM_ROW_super_file)) ||
            (!gone && f->length > PM_SHARD_RANGE) || !in_order(f, x->entries + seen))
            return false;
        next = row + 1;
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
        return pm_backup_damaged(what, at, "the index of a round is wrong", err);
    x->data = x->next = at + pm_backup_align(x->map_len);
    for (uint64_t i = 0; has_data && i < x->head.entries; i++)
        x->blocks += !(x->entries[i].block & PM_BACKUP_HOLE);
    x->next += x->blocks * PM_BACKUP_BLOCK;
    if (has_data && x->blocks && x->next > size)
        return pm_backup_damaged(what, at, "the file ends within the data of a round", err);
    return PM_OK;
}

int pm_backup_read(int fd, uint64_t at, bool has_data, const char *what, struct pm_backup_index *x,
                   struct pm_error *err) {
    struct stat st;
    *x = (struct pm_backup_index){0};
    if (fstat(fd, &st) != 0)
        return read_failed(what, err);
    ssize_t got = pm_os_read_at(fd, &x->head, sizeof x->head, at);
    if (got < 0)
        return read_failed(what, err);
    if (got < (ssize_t)sizeof x->head || x->head.magic == 0)
        return PM_NEEDS_RECOVERY;
    uint64_t size = (uint64_t)st.st_size;
    uint64_t bytes = pm_backup_record_bytes(x->head.files, x->head.entries);
    if (x->head.magic != PM_BACKUP_MAGIC ||
        x->head.crc != pm_crc32c(0, &x->head, offsetof(struct pm_backup_record, crc)) ||
        x->head.entries > size || bytes > size - at)
        return pm_backup_damaged(what, at, "the header of a round is wrong", err);
    x->map = mmap(pm_os_place(bytes), bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)at);
    x->map_len = bytes;
    if (x->map == MAP_FAILED)
        return read_failed(what, err);
    pm_view_note(x->map, bytes, what, true, at);
    int status = check_index(x, at, has_data, size, what, err);
    if (status != PM_OK)
        pm_backup_close(x);
    return status;
}

void pm_backup_close(struct pm_backup_index *x) {
    pm_view_forget(x->map);
    munmap(x->map, x->map_len);
}

// ---- checksums ----------------------------------------------------------------------------------

enum { LANES = 4 };
#define ODD 0x9e3779b97f4a7c15ull

static inline uint64_t stir(uint64_t h, uint64_t word) {
    h = (h ^ word) * ODD;
    return h << 29 | h >> 35;
}

// Each step can be undone, so two blocks that differ in one word never have the same lanes.
static uint32_t hash(const char *block) {
    uint64_t lane[LANES] = {1, 2, 3, 4}, h = 0;
    for (size_t i = 0; i < PM_BACKUP_BLOCK; i += sizeof lane)
        for (unsigned k = 0; k < LANES; k++) {
            uint64_t word;
            memcpy(&word, block + i + k * sizeof word, sizeof word);
            lane[k] = stir(lane[k], word);
        }
    for (unsigned k = 0; k < LANES; k++)
        h = stir(h, lane[k]);
    return (uint32_t)(h >> 32);
}

uint64_t pm_backup_sum(const void *block) {
    const char *p = block;
    if (*p == 0 && memcmp(p, p + 1, PM_BACKUP_BLOCK - 1) == 0)
        return 0;
    uint64_t sum = (uint64_t)pm_crc32c(0, block, PM_BACKUP_BLOCK) << 32 | hash(block);
    return sum ? sum : 1;
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_record.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/os_file.h"

void record_file(struct record *r, size_t row, uint64_t length) {
    struct pm_backup_file *f = &r->files[r->count];
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", pm_heap_files[row].name);
    f->length = length;
    r->rows[r->count++] = row;
}

void record_drop_file(struct record *r) { r->count--; }

void record_entry(struct record *r, uint64_t block, uint64_t sum) {
    if (r->used == r->room) {
        uint64_t room = r->room ? r->room * 2 : 1024;
        struct pm_backup_entry *more = realloc(r->entries, room * sizeof *more);
        r->failed |= !more;
        if (!more)
            return;
        r->entries = more;
        r->room = room;
    }
    r->entries[r->used++] = (struct pm_backup_entry){(uint32_t)block | (sum ? 0 : PM_BACKUP_HOLE),
                                                     {(uint32_t)sum, (uint32_t)(sum >> 32)}};
    r->files[r->count - 1].entries++;
    r->blocks += sum != 0;
}

static struct pm_backup_record whole(const struct record *r, const struct pm_backup_record *head) {
    struct pm_backup_record h = *head;
    h.magic = PM_BACKUP_MAGIC;
    h.files = r->count;
    h.entries = r->used;
    h.index_crc = pm_crc32c(0, r->files, r->count * sizeof *r->files);
    h.index_crc = pm_crc32c(h.index_crc, r->entries, r->used * sizeof *r->entries);
    h.crc = pm_crc32c(0, &h, offsetof(struct pm_backup_record, crc));
    return h;
}

bool record_write(const struct record *r, int fd, uint64_t at, struct pm_backup_record *head) {
    struct pm_backup_record h = whole(r, head);
    *head = h;
    uint64_t files = r->count * sizeof *r->files;
    h.magic = 0;
    return pm_os_write_all(fd, &h, sizeof h, at) &&
           pm_os_write_all(fd, r->files, files, at + sizeof h) &&
           pm_os_write_all(fd, r->entries, r->used * sizeof *r->entries, at + sizeof h + files);
}

bool record_commit(int fd, uint64_t at) {
    uint64_t magic = PM_BACKUP_MAGIC;
    return pm_os_write_all(fd, &magic, sizeof magic, at);
}

bool record_write_checksums(const struct record *r, int fd, struct pm_backup_record *head) {
    uint64_t ledger = pm_backup_align(pm_backup_record_bytes(r->count, r->used));
    head->ledger = 1;
    return record_write(r, fd, 0, head) &&
           pm_backup_write_ledger(fd, ledger, head->uuid, head->round, 0, 0) &&
           record_commit(fd, 0);
}

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A record of a backup while it is put together.
#ifndef PM_TOOLS_BACKUP_RECORD_H
#define PM_TOOLS_BACKUP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "media/backup/backup.h"
#include "media/heap_files.h"

struct record {
    struct pm_backup_file files[PM_HEAP_FILES];
    size_t rows[PM_HEAP_FILES]; // of the files, in the table
    uint32_t count;             // of files
    struct pm_backup_entry *entries;
    uint64_t used, room;
    uint64_t blocks; // entries with data
    bool failed;     // there was no memory
};

// Files and entries follow each other as in the record. If there is no memory, `failed` is set.
void record_file(struct record *r, size_t row, uint64_t length);
// Takes back a file without entries.
void record_drop_file(struct record *r);
// `sum` 0: a hole.
void record_entry(struct record *r, uint64_t block, uint64_t sum);

// Writes the record at `at`, with uuid, round and time of `head`, but not the first word, the magic
// number. Without it the record is not in force. `head` becomes the whole header ...
bool record_write(const struct record *r, int fd, uint64_t at, struct pm_backup_record *head);
// ... and writes that.
bool record_commit(int fd, uint64_t at);
// Writes backup.checksums: the record, and a ledger without an increment.
bool record_write_checksums(const struct record *r, int fd, struct pm_backup_record *head);

#endif

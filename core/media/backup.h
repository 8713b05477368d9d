// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Backups on media: how they are read, and how one becomes an ordinary heap.
//
//              superblock is called   the heap's files are        who opens it
//   UNFINISHED backup.unfinished      partly copied               is refused
//   PLAIN      superblock             the backup                  finds a heap
//   LAYERED    backup.superblock      older than the increments   folds first, and finds a heap
//
// A first round makes UNFINISHED and then PLAIN. A later round makes LAYERED and appends an
// increment: it never changes a byte of the backup that stands. So each changed block is written
// once, and a kill leaves the old backup or the new one. Folding writes the increments to the files
// and makes PLAIN. If it is interrupted, it begins anew: the increments stay where they are.
//
// Names may change only under the exclusive lock of the directory.
#ifndef PM_BACKUP_H
#define PM_BACKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backup_format.h"
#include "base/message.h"

#define PM_BACKUP_CHECKSUMS "backup.checksums"
#define PM_BACKUP_NEW_CHECKSUMS "backup.checksums.new"
#define PM_BACKUP_INCREMENTS "backup.increments"
#define PM_BACKUP_SUPERBLOCK "backup.superblock"
#define PM_BACKUP_UNFINISHED "backup.unfinished"

enum pm_backup_state {
    PM_BACKUP_IS_NONE,
    PM_BACKUP_IS_UNFINISHED,
    PM_BACKUP_IS_PLAIN,
    PM_BACKUP_IS_LAYERED
};

// PM_BACKUP_IS_NONE: an ordinary heap, or none. `fd` is the directory.
enum pm_backup_state pm_backup_state(int fd);
// The same for a directory without a superblock: a system call less.
enum pm_backup_state pm_backup_state_headless(int fd);
// Whether the name belongs to a backup.
bool pm_backup_name(const char *name);

// A record that was read. The index is mapped until pm_backup_close_record().
struct pm_backup_index {
    struct pm_backup_record head;
    const struct pm_backup_file *files;
    const struct pm_backup_entry *entries;
    uint64_t blocks; // entries that have data
    uint64_t data;   // where the data of the first one lies
    uint64_t next;   // where the next record begins
    void *map;
    size_t map_len;
};
// Reads and checks the record at `at`. PM_OK; PM_NEEDS_RECOVERY: there is none, the end; PM_DAMAGE
// or PM_OPERATIONAL. `has_data`: it is one of backup.increments. `what` is the path, for messages.
int pm_backup_read(int fd, uint64_t at, bool has_data, const char *what,
                   struct pm_backup_index *out, struct pm_error *err);
void pm_backup_close(struct pm_backup_index *index);
// Bytes of a record's header and index.
static inline uint64_t pm_backup_record_bytes(uint64_t files, uint64_t entries) {
    return sizeof(struct pm_backup_record) + files * sizeof(struct pm_backup_file) +
           entries * sizeof(struct pm_backup_entry);
}
static inline uint64_t pm_backup_align(uint64_t bytes) {
    return (bytes + PM_BACKUP_BLOCK - 1) & ~(uint64_t)(PM_BACKUP_BLOCK - 1);
}

// LAYERED becomes PLAIN. The caller holds the directory's exclusive lock. `dir` is for messages.
int pm_backup_fold(int dir_fd, const char *dir, struct pm_error *err);

#endif

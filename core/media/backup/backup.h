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
#include <sys/types.h>

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
    PM_BACKUP_IS_LAYERED,
    PM_BACKUP_IS_UNKNOWN // its directory cannot be looked at, with errno
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

// A block's checksum: 64 bits, of which the upper ones are a CRC-32C and the lower ones a hash that
// has nothing in common with it. A block of zeroes has 0, and no other block has.
uint64_t pm_backup_sum(const void *block);
static inline uint64_t pm_backup_entry_sum(const struct pm_backup_entry *e) {
    return (uint64_t)e->sum[1] << 32 | e->sum[0];
}

// What backup.checksums says of the rounds in force.
struct pm_backup_rounds {
    uint8_t uuid[16];
    uint64_t base; // the last round that is in the checksums themselves
    uint64_t when; // that was
    bool known;    // there is a ledger. Else an older version has made the backup
    struct pm_backup_ledger ledger;
    uint64_t at; // where it lies
};
// PM_DAMAGE: there is a ledger, and no slot of it is whole; or no file.
int pm_backup_read_rounds(int dir_fd, const char *dir, struct pm_backup_rounds *r,
                          struct pm_error *err);
// Checks the increment `x` at `at`: it follows the one of the round `before` (0: it is the first),
// and is what the ledger says.
int pm_backup_check_round(const struct pm_backup_rounds *r, const struct pm_backup_index *x,
                          uint64_t before, uint64_t at, const char *what, struct pm_error *err);
// The increments end at `at`, with the round `last`.
int pm_backup_check_last(const struct pm_backup_rounds *r, uint64_t last, uint64_t at,
                         const char *what, struct pm_error *err);
// Writes a slot. The caller makes it durable.
bool pm_backup_write_ledger(int fd, uint64_t at, const uint8_t uuid[16], uint64_t round,
                            uint64_t end, uint32_t head_crc);

// Writes when a round began that succeeded. The caller makes it durable.
bool pm_backup_write_stamp(int fd, const struct pm_backup_rounds *r, uint64_t round, uint64_t when);
struct pm_backup_age {
    uint8_t uuid[16]; // of the heap
    uint64_t round;
    uint64_t when; // seconds since the epoch
};
// How old the backup is, without a lock: a round may be under way.
int pm_backup_age(int dir_fd, const char *dir, struct pm_backup_age *age, struct pm_error *err);

// "FILE, byte N: why; make another backup". PM_DAMAGE.
int pm_backup_damaged(const char *what, uint64_t at, const char *why, struct pm_error *err);

// LAYERED becomes PLAIN. Before the first byte is written, each block in force is compared with its
// checksum. PM_DAMAGE: nothing was changed. The caller holds the directory's exclusive lock. `dir`
// is for messages.
int pm_backup_fold(int dir_fd, const char *dir, struct pm_error *err);

#endif

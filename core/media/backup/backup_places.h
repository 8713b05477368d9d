// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where the blocks of a file of a backup lie, as its increments say: what folding would make of
// them.
#ifndef PM_BACKUP_PLACES_H
#define PM_BACKUP_PLACES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backup.h"

// Of one file. It begins as zeroes.
struct pm_backup_places {
    bool named;      // by an increment. Else the file is as the first round has copied it
    uint64_t cut;    // increments have cut off what lies beyond; set if `named`
    uint64_t blocks; // room of `word`; blocks beyond it lie in the file, if it has not been cut
    uint64_t used;   // words; those beyond are zero
    uint64_t *word;  // see pm_backup_place()
};

#define PM_BACKUP_IN_FILE 0ull
#define PM_BACKUP_BY_HOLE (1ull << 63) // an increment has made it a hole
struct pm_backup_place {
    uint64_t at;    // PM_BACKUP_IN_FILE, PM_BACKUP_BY_HOLE, or where in backup.increments
    uint32_t bytes; // of the block. An increment has cut the file within it: the others are zeroes
};

// The last block that the entries of a file name, and one more.
uint64_t pm_backup_blocks_of(const struct pm_backup_file *f, const struct pm_backup_entry *e);
// Takes over what an increment says of the file. *data: where its blocks begin; moves on. False: no
// memory.
bool pm_backup_note(struct pm_backup_places *p, const struct pm_backup_file *f,
                    const struct pm_backup_entry *e, uint64_t *data);
struct pm_backup_place pm_backup_place(const struct pm_backup_places *p, uint64_t block);
// Whether the block is what the first round has copied, at least its first bytes. A fold that was
// cut short may have changed the others.
bool pm_backup_stands(const struct pm_backup_places *p, uint64_t block);
void pm_backup_forget(struct pm_backup_places *p);

// Reads the block at `at`. Bytes that the place or the file does not have become zeroes. Returns
// how many bytes the file had; -1: errno.
ssize_t pm_backup_read_block(int fd, uint64_t at, struct pm_backup_place place,
                             char out[PM_BACKUP_BLOCK]);

#endif

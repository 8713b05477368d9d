// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a backup has: length and checksums of each file, and where each block lies. Read from
// backup.checksums and backup.increments, in memory.
#ifndef PM_TOOLS_BACKUP_KEPT_H
#define PM_TOOLS_BACKUP_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "media/backup/backup.h"
#include "media/backup/backup_places.h"
#include "media/heap_files.h"

struct kept_file {
    bool there;
    uint64_t length;
    uint64_t blocks; // room of `sum`; blocks beyond it are holes
    uint64_t *sum;   // 0: the block is a hole
    struct pm_backup_places places;
    // What the file itself may be before the increments are folded in, or when that was cut short.
    bool missing;               // it may be missing
    uint64_t shortest, longest; // of all its lengths; 0 is one of them if it was missing once
};

struct kept {
    uint8_t uuid[16];
    uint64_t round, when;
    uint64_t increments; // how many
    uint64_t last, end;  // where the last one begins and ends in backup.increments
    uint32_t head_crc;   // of the last one
    struct pm_backup_rounds rounds;
    struct kept_file file[PM_HEAP_FILES];
};

static inline uint64_t kept_sum_of(const struct kept_file *f, uint64_t block) {
    return block < f->blocks ? f->sum[block] : 0;
}

// `fd` is the directory `dir`, and a backup.
int kept_load(int fd, const char *dir, struct kept *kept, struct pm_error *err);
void kept_free(struct kept *kept);

// Blocks of a file of this length.
static inline uint64_t kept_blocks(uint64_t length) {
    return pm_backup_align(length) / PM_BACKUP_BLOCK;
}

#endif

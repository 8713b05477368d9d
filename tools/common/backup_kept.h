// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a backup has: length and checksums of each file, and where each block lies. Read from
// backup.checksums and backup.increments, in memory.
#ifndef PM_TOOLS_BACKUP_KEPT_H
#define PM_TOOLS_BACKUP_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "media/backup.h"
#include "media/heap_files.h"

struct kept_file {
    bool there;
    uint64_t length;
    uint64_t blocks; // room of the arrays; blocks beyond it are holes
    uint64_t *sum;   // 0: the block is a hole
    // Where it lies in backup.increments; PM_BACKUP_BY_HOLE: one has made it a hole; 0: in the file
    // itself.
    uint64_t *place;
    // What the file itself may be before the increments are folded in, or when that was cut short.
    bool first, named;          // the checksums have it; an increment names it
    uint64_t shortest, longest; // of all its lengths; 0 is one of them if it was gone once
    uint64_t cut;               // increments have cut off what lies beyond
};

struct kept {
    uint8_t uuid[16];
    uint64_t round, when;
    uint64_t increments; // how many
    uint64_t end;        // of the last one, in backup.increments
    uint32_t head_crc;   // of the last one
    struct pm_backup_rounds rounds;
    struct kept_file file[PM_HEAP_FILES];
};

static inline uint64_t kept_sum_of(const struct kept_file *f, uint64_t block) {
    return block < f->blocks ? f->sum[block] : 0;
}

// `fd` is the directory `dir`, and a backup.
int kept_load(int fd, const char *dir, struct kept *kept, struct pm_error *err);

// Whether the block lies in the file itself, as the checksums have it.
bool kept_stands(const struct kept_file *f, uint64_t block);

// Blocks of a file of this length.
static inline uint64_t kept_blocks(uint64_t length) {
    return pm_backup_align(length) / PM_BACKUP_BLOCK;
}

#endif

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
    uint64_t *place; // where it lies in backup.increments; 0: in the file itself
};

struct kept {
    uint8_t uuid[16];
    uint64_t round, when;
    uint64_t increments; // how many
    uint64_t end;        // of the last one, in backup.increments
    struct kept_file file[PM_HEAP_FILES];
};

// A block's checksum: 64 bits, of which the upper ones are a CRC-32C and the lower ones a hash that
// has nothing in common with it. A block of zeroes has 0, and no other block has.
uint64_t kept_sum(const void *block);
static inline uint64_t kept_entry_sum(const struct pm_backup_entry *e) {
    return (uint64_t)e->sum[1] << 32 | e->sum[0];
}
static inline uint64_t kept_sum_of(const struct kept_file *f, uint64_t block) {
    return block < f->blocks ? f->sum[block] : 0;
}

// `fd` is the directory `dir`, and a backup.
int kept_load(int fd, const char *dir, struct kept *kept, struct pm_error *err);

// Blocks of a file of this length.
static inline uint64_t kept_blocks(uint64_t length) {
    return pm_backup_align(length) / PM_BACKUP_BLOCK;
}

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap that is backed up: its files, block by block. Holes are not read. Nothing is written to
// it. A shared lock keeps its owner away meanwhile.
#ifndef PM_TOOLS_BACKUP_SOURCE_H
#define PM_TOOLS_BACKUP_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/backup.h"
#include "media/heap_files.h"
#include "recovery/recover.h"

struct source_file {
    int fd; // -1: the heap has no such file
    uint64_t length;
    uint64_t allocated; // bytes on the file system
};

struct source {
    struct source_file file[PM_HEAP_FILES]; // by the rows of the table
    struct pm_recovery found;               // what a recovery of it would find
    uint64_t allocated;
};

// Opens and checks the heap as a recovery would. A damaged heap is refused: it must not take the
// place of a good backup.
int source_open(const char *heap, pm_progress *progress, struct source *s, struct pm_error *err);

// Called for each block that does not consist of zeroes, by rising number. The last block of a file
// is filled up with zeroes. False ends the reading.
typedef bool source_block_fn(uint64_t block, const char *data, void *arg);
// PM_OK also if `each` has ended it.
int source_read(const struct source *s, size_t row, source_block_fn *each, void *arg,
                struct pm_error *err);
// Reads `count` blocks from `block` on into `out`, as source_read() shows them.
int source_read_blocks(const struct source *s, size_t row, uint64_t block, uint64_t count,
                       char *out, struct pm_error *err);

#endif

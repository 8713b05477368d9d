// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a heap in use has: a checksum for each block of its files, and the contents of those blocks
// that differ from the backup. It is filled while the program runs, corrected while its threads are
// halted, and written to the backup when they go on.
#ifndef PM_TOOLS_BACKUP_IMAGE_H
#define PM_TOOLS_BACKUP_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "backup_kept.h"

struct image_file {
    bool there;
    uint64_t length;
    uint64_t room;  // blocks in the arrays
    uint64_t *sum;  // 0: a hole, or zeroes
    uint32_t *slot; // where the contents are kept; 0: nowhere, because the backup has them
};

struct image {
    struct image_file file[PM_HEAP_FILES];
    const struct kept *base; // the backup
    int dir;                 // of the backup, for what does not fit into memory
    char *memory;            // slots from 1 to in_memory
    uint64_t in_memory;
    int spill;        // a file without a name, with the other slots; -1: not needed yet
    uint64_t spilled; // bytes written to it
    uint32_t used, free_count, free_room, *free_slot;
    bool failed; // no memory or no room, with `error`
    int error;
};

// How many bytes of contents are kept in memory, at most.
uint64_t image_memory(void);
// `base` and `dir` are the backup's. `equal`: the heap has what the backup has, until more is seen.
bool image_begin(struct image *i, const struct kept *base, int dir, bool equal);

// The file is there and has this length, or is not. Blocks beyond the length are forgotten.
void image_file(struct image *i, size_t row, bool there, uint64_t length);
// The block has these bytes; or [from, to) are holes. True: that is new.
bool image_block(struct image *i, size_t row, uint64_t block, const char *data);
void image_hole(struct image *i, size_t row, uint64_t from, uint64_t to);

// The contents of a block that differs from the backup. False: they cannot be read.
bool image_read(const struct image *i, size_t row, uint64_t block, char *out);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap that is backed up: its files, block by block. Holes are not read. Nothing is written to
// it. If nobody uses it, a shared lock keeps its owner away meanwhile. If a process uses it, see
// backup_live.h.
#ifndef PM_TOOLS_BACKUP_SOURCE_H
#define PM_TOOLS_BACKUP_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "media/backup/backup.h"
#include "media/heap_files.h"
#include "recovery/recover.h"

struct source_file {
    int fd; // -1: the heap has no such file
    uint64_t length;
    uint64_t allocated; // bytes on the file system
    uint64_t dev, ino;
    // A part of a fixed medium is mapped, because a device knows no read: where it lies, and its
    // room.
    const char *bytes; // NULL: it is a file
    uint64_t at, room;
};

struct image;

struct source {
    struct source_file file[PM_HEAP_FILES]; // by the rows of the table
    struct pm_recovery found;               // what a recovery of it would find
    uint64_t allocated;
    pid_t owner;               // the process that uses the heap; 0: nobody does
    const struct image *image; // NULL until the instant is taken. Then blocks come from there
    uint64_t pause_ns;         // how long the owner was halted
    const char *unrecorded;    // why all was compared while the owner was halted; NULL: it was not
    bool of_commit;            // the instant is that of the owner's last commit
    pid_t amid; // else: a thread that was within an operation; 0: all were between operations
};

// Opens and checks the heap as a recovery would. A damaged heap is refused: it must not take the
// place of a good backup. If a process uses it, pm_is_busy(err): then live_open() is for it.
int source_open(const char *heap, pm_progress *progress, struct source *s, struct pm_error *err);

// Called for each block that does not consist of zeroes, by rising number. The last block of a file
// is filled up with zeroes. False ends the reading.
typedef bool source_block_fn(uint64_t block, const char *data, void *arg);
// PM_OK also if `each` has ended it.
int source_read(const struct source *s, size_t row, source_block_fn *each, void *arg,
                struct pm_error *err);
// Opens the files that a heap in use has now, by their names. Parts of a fixed medium are measured.
int source_open_files(struct source *s, struct pm_error *err);
// The next blocks of a file that may have data, from *block on. False: there are none.
bool source_next_data(const struct source_file *f, uint64_t *block, uint64_t *end);
// Reads `count` blocks from `block` on into `out`, as source_read() shows them.
int source_read_blocks(const struct source *s, size_t row, uint64_t block, uint64_t count,
                       char *out, struct pm_error *err);

#endif

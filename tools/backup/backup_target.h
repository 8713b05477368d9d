// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The directory of a backup: found or made, checked, and locked for as long as the tool runs.
#ifndef PM_TOOLS_BACKUP_TARGET_H
#define PM_TOOLS_BACKUP_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "backup_kept.h"
#include "media/backup/backup.h"

struct target {
    const char *dir;
    int fd;
    bool made; // by this process, so removed again if nothing could be written
    // PM_BACKUP_IS_NONE: it is empty.
    enum pm_backup_state state;
    struct kept kept; // if PLAIN or LAYERED
};

// Opens an existing backup. An unfinished one has no checksums yet, and is returned as it is.
int target_open(const char *dir, struct target *t, struct pm_error *err);
// The same for the heap that this process has open: makes the directory if it is missing. Refuses
// what is no backup of that heap, and a directory inside the heap.
int target_open_for_heap(const char *dir, struct target *t, struct pm_error *err);
// Whether the file system has room for `bytes` more. If not, says so.
int target_room(const struct target *t, uint64_t bytes, struct pm_error *err);
// PLAIN: whether any program has used the backup as its heap since the last round. Every opening
// for writing changes the superblock.
int target_unused(const struct target *t, struct pm_error *err);
// The name of the directory becomes durable.
bool target_sync_parent(const struct target *t);
// A round that began then has succeeded: the backup is as old as that. It stands whether or not
// this can be written.
int target_stamp(const struct target *t, uint64_t round, uint64_t when, struct pm_error *err);
// After a failure: removes the directory if it was made and is still empty.
void target_give_up(struct target *t);

// "DIR/NAME: what errno says".
int target_failed(const struct target *t, const char *name, struct pm_error *err);

#endif

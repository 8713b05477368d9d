// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Ranges of the data that were released under PMALLOC_COMMIT. They are anonymous memory, in place
// of the private mapping of the file, until the file has the same bytes (commit.h).
//
//   released                   anonymous, fresh: the file has old bytes there
//   a commit                   anonymous: the file has what the memory has, zeroes if nothing else
//   a later one, if nothing    the file, mapped private
//   there has changed
#ifndef PM_EMPTIED_H
#define PM_EMPTIED_H

#include <stdbool.h>
#include <stdint.h>

struct pm_emptied {
    uint64_t offset, len; // from pm_base, in one shard
    bool fresh;           // released since the last commit
    bool taken;           // fresh, and in the commit that is being made
    bool used;            // allocated again: the file must have space when it is mapped there
    bool promised;        // used, and has space only where it was stored to
};

// Replaces a range by empty memory. Called with the extent lock. False: there are too many ranges,
// or no memory; nothing has changed.
bool pm_emptied_add(uint64_t offset, uint64_t len);

// The range is allocated again, in part or whole. Called with the extent lock. False: there are too
// many ranges.
bool pm_emptied_use(uint64_t offset, uint64_t len);

// A huge block is allocated that has no space yet (PMALLOC_RESERVE=lazy). Its pages are empty
// memory until a commit brings what was stored there into the file. So the store itself needs no
// space: on tmpfs a private mapping of the file would, and there would be a SIGBUS without it.
// Called with the extent lock. False: as pm_emptied_add().
bool pm_emptied_promise(uint64_t offset, uint64_t len);

// The next three are called with the extent locks of all shards, while no thread stores.
// Calls `fn` for each fresh range. They are taken into the commit.
void pm_emptied_take(void (*fn)(const struct pm_emptied *e));
// How much of [offset, offset + len), from its start on, lies in one range or in none.
uint64_t pm_emptied_piece(uint64_t offset, uint64_t len);
enum pm_emptied_is {
    PM_EMPTIED_NOT,    // the piece was not released
    PM_EMPTIED_MAPPED, // it was; now the file is mapped there
    PM_EMPTIED_KEPT,   // it was, but is fresh, or the file cannot be mapped
};
// For such a piece that has the same bytes as the file.
enum pm_emptied_is pm_emptied_map(uint64_t offset, uint64_t len);
// Maps the file in place of the ranges that are not fresh and in which nothing was stored.
void pm_emptied_map_idle(void);

// All data files are mapped anew.
void pm_emptied_forget(void);

// The commit that was taken last is in force, or it failed.
void pm_emptied_taken(bool counts);

#endif

// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Opening the heap, and its state on media. Opening has three steps, so that nothing on media
// changes before everything is checked:
//
//   pm_heap_open    finds, locks and validates; makes the files of a new heap; maps the superblock
//   pm_heap_map     maps the data at its address
//   pm_heap_dirty   durably takes back "clean"; from here on the heap may change
#ifndef PM_HEAP_OPEN_H
#define PM_HEAP_OPEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/backing/file.h"
#include "media/heap.h"

// PM_OK, or an error with its exit status. With `wait` it waits while another process has the heap.
// On failure nothing is kept open, and nothing has changed on disk.
int pm_heap_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err);
// The same for a new heap without names, see pm_make_nameless().
int pm_heap_open_nameless(const char *where, const char *what, struct pm_error *err);

// Maps the data at PM_HEAP_BASE, and the other files elsewhere.
int pm_heap_map(struct pm_error *err);

// For a heap that was opened with PM_OPEN_READONLY, mapped and recovered: from now on this process
// may store to it, and keeps what it stores to itself (PM_HEAP_BORROWED). No byte of the files is
// copied before it is stored to. On failure nothing has changed.
int pm_heap_borrow(struct pm_error *err);

// Reserves the same range for volatile memory.
int pm_heap_volatile(struct pm_error *err);

// Makes the state "dirty", durably, before anything else changes ...
void pm_heap_dirty(void);
// ... and "clean" after everything else: every file is made durable first. False if that failed;
// then the state stays dirty.
bool pm_heap_clean(void);

// Gives up the lock and the mappings of metadata. The data stay mapped, so that late accesses do
// not fault.
void pm_heap_release(void);

// Whether this build can use a heap with this superblock. PM_DAMAGE if the superblock is damaged,
// PM_OPERATIONAL if another build has made the heap. `dir` is for the message.
int pm_superblock_check(const struct pm_superblock *super, const char *dir, struct pm_error *err);

#endif

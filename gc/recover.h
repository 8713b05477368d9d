// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Recovery, one code for both ways in: in a process before main, and offline in the tools.
//
//   1 lock, superblock, geometry             pm_heap_open, pm_heap_map
//   2 replay the bookkeeping log             every entry validated before anything is written
//   3 rebuild volatile headers, slab by slab
//   4 mark in parallel from the roots        mark.h
//   5 sweep: what is not marked is free
//   6 write the state
//
// Idempotent: a crash in it is a crash before it.
#ifndef PMALLOC_GC_RECOVER_H
#define PMALLOC_GC_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "collector.h"
#include "heap.h"

// ---- for the tools; single-threaded callers ----

// Opens and maps a heap without a program around it. `mode` is PM_OPEN_EXISTING or PM_OPEN_READONLY. Call
// pm_options_default() first. On failure nothing is held.
int pm_offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err);
// Steps 2 to 6. With `write` false nothing on media changes and `result` says what would be found. `markers`
// 0 means one for each core. A heap without roots is empty in the result.
int pm_recover(bool write, unsigned markers, struct pm_recovery *result, struct pm_error *err);
// After a pm_recover with `write`: writes bitmaps and the clean state. False when that failed (the heap stays
// unclean, nothing is lost).
bool pm_offline_finish(void);
// Whether the heap was cleanly closed, before pm_recover.
bool pm_offline_was_clean(void);

// Called now and then during recovery with a stage ("log", "mark", "sweep") and bytes done of about `total`;
// NULL (the default) for none. Called from one thread.
extern void (*pm_recover_progress)(const char *stage, uint64_t done, uint64_t total);

#endif

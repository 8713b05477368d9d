// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The rows of backing.c. Contracts: backing.h, at the functions that choose a row.
#ifndef PM_BACKING_ROWS_H
#define PM_BACKING_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "media/heap.h"

// ---- of files: on_files.c -----------------------------------------------------------------------

bool pm_files_set_length(struct pm_shard *s, uint64_t bytes);
// The data file alone, without what must be durable before.
bool pm_files_extend(struct pm_shard *s, uint64_t bytes);
bool pm_files_allocate(struct pm_shard *s, uint64_t offset, uint64_t len);
uint64_t pm_files_outstanding(struct pm_shard *s, uint64_t promised);
bool pm_files_have_room(struct pm_shard *s, uint64_t more, bool *known);
bool pm_files_release(struct pm_shard *s, uint64_t offset, uint64_t len);

// ---- of fixed media: on_parts.c -----------------------------------------------------------------

bool pm_parts_set_length(struct pm_shard *s, uint64_t bytes);

// ---- under PMALLOC_COMMIT: on_journal.c ---------------------------------------------------------

bool pm_journaled_set_length(struct pm_shard *s, uint64_t bytes);
bool pm_journaled_allocate(struct pm_shard *s, uint64_t offset, uint64_t len);
bool pm_journaled_promise(struct pm_shard *s, uint64_t offset, uint64_t len, bool *empty);
bool pm_journaled_has_room(struct pm_shard *s, uint64_t more);
bool pm_journaled_cut(struct pm_shard *s, uint64_t bytes);

// ---- without a medium: on_memory.c --------------------------------------------------------------

bool pm_memory_set_length(struct pm_shard *s, uint64_t bytes);
bool pm_memory_release(uint64_t offset, uint64_t len);
// Dropped pages of a private mapping would show the file again.
bool pm_detached_release(uint64_t offset, uint64_t len);

#endif

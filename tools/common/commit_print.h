// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints which commit a heap stands at (PMALLOC_COMMIT).
#ifndef PM_TOOLS_COMMIT_PRINT_H
#define PM_TOOLS_COMMIT_PRINT_H

#include <stdbool.h>

#include "json.h"
#include "media/commit/journal_files.h"

// "2026-01-02 03:04:05.678 +0100, 12 s ago". `time`: nanoseconds since 1970.
const char *commit_when(uint64_t time, char out[96]);
// "35 pages, threads stood still for 0.8 ms"
#define COMMIT_COST 160
const char *commit_cost(const struct pm_journal_found *commit, char out[COMMIT_COST]);

// For the heap that was opened: a line, or an object `commit`. Nothing if there was no journal.
void commit_text(void);
void commit_json(struct json *j);
// What a kill or a power failure leaves of it: pm_persist_row(), but in commit mode the instant.
// Of a heap in doubt it says why nothing is promised.
const char *commit_guarantee(void);
// The members of such an object.
void commit_members(struct json *j, const struct pm_journal_found *commit);

#endif

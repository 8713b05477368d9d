// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What pmalloc-info prints about the open heap.
#ifndef PM_TOOLS_INFO_PRINT_H
#define PM_TOOLS_INFO_PRINT_H

#include <stdbool.h>

#include "census.h"
#include "media/format.h"
#include "recovery/recover.h"

struct info {
    const char *heap;
    struct pm_recovery found;
    struct census census;
};

// Prints text. It has the map of the heap if `map` is set, or on a terminal that is wide enough.
void info_text(const struct info *info, bool map);
void info_json(const struct info *info);
// Prints the JSON object for a heap that cannot be shown.
void info_error(const char *heap, const struct pm_error *err);

// The heap's identity as text. info_program() returns false if no program is on record.
void info_uuid(char out[40]);
bool info_program(struct pm_program *out);
void info_build_id(const struct pm_program *program, char out[72]);
// What became of its addresses: a word, or the end of a line.
const char *info_addresses(const struct pm_program *program, bool line);

#endif

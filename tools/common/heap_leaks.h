// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --leaks: blocks of a heap at rest that no root reaches. The next recovery frees
// them.
#ifndef PM_TOOLS_HEAP_LEAKS_H
#define PM_TOOLS_HEAP_LEAKS_H

#include <stdbool.h>

#include "json.h"
#include "live/leaks.h"
#include "recovery/recover.h"

// After a pm_recover() that has written nothing. False: which small blocks were allocated is not on
// record, as after a crash; only large blocks are counted.
bool heap_leaks_find(const struct pm_recovery *found, struct pm_leaks *leaks);
void heap_leaks_print(const char *heap, const struct pm_leaks *leaks, bool exact,
                      const struct pm_recovery *found, bool json);
// The sizes as an array; a line of a table.
void heap_leaks_sizes(struct json *j, const struct pm_leaks *leaks);
void heap_leaks_line(const char *line);

#endif
